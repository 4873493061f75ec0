"""Rotations that the expert and the cameras use. Right-handed, radians, matrices [3, 3]."""

from __future__ import annotations

import numpy as np

DOWN = np.diag([-1.0, 1.0, -1.0])  # tip frame of a hand that points straight down and closes along world y


def about_x(angle: float) -> np.ndarray:
    """Turn about x."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def about_y(angle: float) -> np.ndarray:
    """Turn about y."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])


def about_z(angle: float) -> np.ndarray:
    """Turn about z."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def by_vector(vector: np.ndarray) -> np.ndarray:
    """Turn by a rotation vector [3] (Rodrigues)."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = vector / angle
    k = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + np.sin(angle) * k + (1.0 - np.cos(angle)) * k @ k


def yaw_of(rotation: np.ndarray, period: float = np.pi) -> float:
    """Heading of a level object's x axis, folded into (-period / 2, period / 2] by the object's symmetry."""
    yaw = float(np.arctan2(rotation[1, 0], rotation[0, 0]))
    return (yaw + period / 2) % period - period / 2
