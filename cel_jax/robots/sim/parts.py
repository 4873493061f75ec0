"""MJCF of the parts, the packaging box, the lid and the fixtures, all of primitive boxes."""

from __future__ import annotations

import math

from cel_jax.robots.sim import layout as L

# (contype, conaffinity): 1 world fixtures, 2 parts, 4 left arm, 8 right arm, 16 the packaging box.
PART_BITS = (2, 1 | 2 | 4 | 8 | 16)
FIXTURE_BITS = (1, 2 | 4 | 8)
BOX_BITS = (16, 2 | 4 | 8)
SOLREF = "0.009 1"


def geom(pos: tuple[float, ...], half: tuple[float, ...], rgba: str, bits: tuple[int, int], **more: object) -> str:
    """One box geom; `more` holds further MJCF attributes."""
    extra = "".join(f' {key}="{value}"' for key, value in more.items())
    return (
        f'<geom type="box" pos="{_v(pos)}" size="{_v(half)}" rgba="{rgba}" contype="{bits[0]}" conaffinity="{bits[1]}" '
        f'solref="{SOLREF}"{extra}/>'
    )


def _v(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.6g}" for value in values)


def free_part(name: str, geoms: str) -> str:
    """A part that is free to move."""
    return f'<body name="{name}"><freejoint name="{name}"/>{geoms}</body>'


def small_parts(friction_scale: float) -> str:
    """Case, manual, cable bundle, charging adapter and phone."""
    mu = 0.55 * friction_scale

    def part(name: str, half: tuple[float, ...], rgba: str, mass: float, friction: float, marks: str = "") -> str:
        body = geom((0, 0, 0), half, rgba, PART_BITS, mass=mass, friction=f"{friction} .005 .0001")
        return free_part(name, body + marks)

    screen = _mark((0, 0, L.PHONE_HALF[2]), (0.060, 0.035, 0.0006), "0.2 0.45 0.75 1")
    ring = _mark((0, 0, L.CABLE_HALF[2]), (0.012, 0.009, 0.0006), "0.2 0.2 0.2 1")
    prongs = _mark((0, 0, L.ADAPTER_HALF[2]), (0.004, 0.008, 0.001), "0.7 0.6 0.2 1")
    title = _mark((0.012, 0, L.MANUAL_HALF[2]), (0.02, 0.016, 0.0005), "0.75 0.2 0.2 1")
    return (
        part("case", L.CASE_HALF, "0.15 0.55 0.35 1", 0.06, mu)
        + part("manual", L.MANUAL_HALF, "0.95 0.93 0.85 1", 0.04, mu, title)
        + part("cable", L.CABLE_HALF, "0.92 0.92 0.95 1", 0.06, mu, ring)
        + part("adapter", L.ADAPTER_HALF, "0.95 0.6 0.15 1", 0.07, mu, prongs)
        + part("phone", L.PHONE_HALF, "0.08 0.08 0.1 1", 0.16, 0.25 * friction_scale, screen)
    )


def _mark(pos: tuple[float, ...], half: tuple[float, ...], rgba: str) -> str:
    """A picture on a part: seen, never touched."""
    return f'<geom type="box" pos="{_v(pos)}" size="{_v(half)}" rgba="{rgba}" contype="0" conaffinity="0" mass="0"/>'


def packaging_box(friction_scale: float, slide_scale: float) -> str:
    """The open box: slides and turns on the table against dry friction (tipping it over is not modelled)."""
    (hx, hy), w, rim = L.BOX_INNER_HALF, L.BOX_WALL / 2, L.BOX_RIM_Z / 2
    friction = f"{0.3 * friction_scale} .005 .0001"
    ledge, wall, floor = "0.5 0.52 0.6 1", "0.32 0.36 0.5 1", "0.42 0.45 0.58 1"

    def g(pos: tuple[float, ...], half: tuple[float, ...], rgba: str) -> str:
        return geom(pos, half, rgba, BOX_BITS, friction=friction, mass=0.05)

    geoms = g((0, 0, L.BOX_FLOOR / 2), (hx, hy, L.BOX_FLOOR / 2), floor)
    for s in (-1, 1):
        geoms += g((0, s * (hy + w), rim), (hx + 2 * w, w, rim), wall)
        geoms += g((s * (hx + w), 0, rim), (w, hy, rim), wall)
        geoms += g((s * (hx - L.LEDGE_DEPTH / 2), 0, L.LEDGE_Z / 2), (L.LEDGE_DEPTH / 2, hy, L.LEDGE_Z / 2), ledge)
    geoms += g((L.DIVIDER_X, 0, L.LEDGE_Z / 2), (L.DIVIDER_HALF, hy, L.LEDGE_Z / 2), ledge)
    slide = f'frictionloss="{3.5 * slide_scale}" damping="1" solreffriction="0.01 1"'
    return (
        f'<body name="box"><joint name="box_x" type="slide" axis="1 0 0" {slide}/>'
        f'<joint name="box_y" type="slide" axis="0 1 0" {slide}/>'
        f'<joint name="box_yaw" type="hinge" axis="0 0 1" frictionloss="{0.16 * slide_scale}" damping="0.02" '
        f'solreffriction="0.01 1"/>{geoms}</body>'
    )


def lid(friction_scale: float) -> str:
    """The lid: a block to hold on a flange, and beneath it a plug with slanted sides that centres it in the box."""
    mu = f"{0.25 * friction_scale} .005 .0001"

    def g(pos: tuple[float, ...], half: tuple[float, ...], rgba: str, mass: float, **more: object) -> str:
        return geom(pos, half, rgba, PART_BITS, mass=mass, friction=mu, **more)

    fx, fy = L.LID_FLANGE_HALF
    geoms = g((0, 0, L.LID_FLANGE_Z / 2), (fx, fy, L.LID_FLANGE_Z / 2), "0.7 0.72 0.78 1", 0.03)
    block_z = L.LID_FLANGE_Z + L.LID_BLOCK_Z / 2
    geoms += g((0, 0, block_z), (*L.LID_BLOCK_HALF, L.LID_BLOCK_Z / 2), "0.85 0.86 0.9 1", 0.05)
    return free_part("lid", geoms + _plug(g))


def _plug(g) -> str:  # type: ignore[no-untyped-def]
    """Bottom plate and four slanted sides (45 degrees) of the lid's plug."""
    (tx, ty), (bx, by), depth = L.LID_PLUG_TOP_HALF, L.LID_PLUG_BOTTOM_HALF, L.LID_PLUG_DEPTH
    rgba, t = "0.62 0.64 0.7 1", 0.003
    text = str(g((0, 0, -depth + t), (bx, by, t), rgba, 0.02))
    slope = math.hypot(ty - by, depth) / 2
    back = t * math.sqrt(0.5)
    for s in (-1, 1):
        y, x, z = s * ((ty + by) / 2 - back), s * ((tx + bx) / 2 - back), -depth / 2 + back
        text += g((0, y, z), (bx + 0.004, slope, t), rgba, 0.005, euler=f"{s * 0.785398} 0 0")
        text += g((x, 0, z), (slope, by + 0.004, t), rgba, 0.005, euler=f"0 {-s * 0.785398} 0")
    return text


def fixtures() -> str:
    """Pedestals, racks, the lid's stand (mocap bodies: a reset moves them) and the fixed pad."""
    ph = L.PEDESTAL_Z / 2
    grip = "0.7 .005 .0001"

    def g(pos: tuple[float, ...], half: tuple[float, ...], rgba: str) -> str:
        return geom(pos, half, rgba, FIXTURE_BITS, friction=grip)

    def stop(x: float, top: float) -> str:
        return g((x, 0, top / 2), (0.003, 0.016, top / 2), "0.3 0.3 0.33 1")

    stack = g((0, 0, ph), (0.056, L.PEDESTAL_HALF_Y, ph), "0.12 0.42 0.28 1")
    rack = g((0, 0, ph), (0.050, 0.019, ph), "0.55 0.5 0.45 1") + stop(-0.0605, 0.034) + stop(0.0605, 0.034)
    cable = g((0, 0, L.CABLE_RACK_Z / 2), (0.030, 0.016, L.CABLE_RACK_Z / 2), "0.5 0.45 0.5 1")
    cable += stop(-0.0315, 0.022) + stop(0.0315, 0.022)
    stand_z = stand_height() / 2
    stand = g((0, 0.017, stand_z), (0.060, 0.055, stand_z), "0.45 0.4 0.38 1")
    pad = g((*L.PAD_XY, L.PAD_HALF[2]), L.PAD_HALF, "0.75 0.7 0.3 1")
    bodies = {"case_stack": stack, "manual_rack": rack, "cable_rack": cable, "adapter_rack": _pocket(g), "stand": stand}
    return pad + "".join(f'<body name="{n}" mocap="true">{geoms}</body>' for n, geoms in bodies.items())


def _pocket(g) -> str:  # type: ignore[no-untyped-def]
    """The adapter's rack: a foot with a shallow pocket; its side lips are low, so that fingers can close."""
    half, wall, top = L.ADAPTER_HALF[0] + 0.0015, 0.0025, L.ADAPTER_RACK_Z + L.ADAPTER_POCKET_DEPTH
    rgba = "0.4 0.35 0.5 1"
    text = str(g((0, 0, L.ADAPTER_RACK_Z / 2), (half + 2 * wall, half + 2 * wall, L.ADAPTER_RACK_Z / 2), rgba))
    low = L.ADAPTER_RACK_Z + L.ADAPTER_LIP / 2
    for s in (-1, 1):
        text += g((0, s * (half + wall), low), (half + 2 * wall, wall, L.ADAPTER_LIP / 2), rgba)
        text += g((s * (half + wall), 0, (L.ADAPTER_RACK_Z + top) / 2), (wall, half, L.ADAPTER_POCKET_DEPTH / 2), rgba)
    return text


def stand_height() -> float:
    """Height of the lid's stand: the lid's flange hangs `LID_GAP_OVER_RIM` above the box's rim."""
    return L.BOX_RIM_Z + L.LID_GAP_OVER_RIM - L.LID_PLUG_DEPTH
