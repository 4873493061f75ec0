import numpy as np
import pytest

from cel_jax.data import images


def _picture(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8)


def test_table_4_boxes_fit_the_papers_cameras() -> None:
    for task, (head, wrist) in images.CROP_BOXES.items():
        for box, (height, width), camera in ((head, images.HEAD_PX, "head"), (wrist, images.WRIST_PX, "left_wrist")):
            assert images.crop_box(task, camera) == box
            assert images.preprocess(np.zeros((height, width, 3), np.uint8), box, 224).shape == (224, 224, 3)
    assert len(images.CROP_BOXES) == 5
    assert images.crop_box("phone_packaging", "head") is None
    assert images.crop_box("phone_charging", "right_wrist") == (300, 304, 748, 976)  # top, left, bottom, right


def test_crop_keeps_the_named_pixels_and_refuses_other_cameras() -> None:
    picture = _picture(400, 640)
    part = images.crop(picture, images.crop_box("flower_arrangement", "head"))
    np.testing.assert_array_equal(part, picture[120:330, 180:460])
    with pytest.raises(ValueError, match="leaves an image of 400x640"):
        images.crop(picture, images.crop_box("flower_arrangement", "left_wrist"))


def test_preprocess_squeezes_and_never_pads() -> None:
    picture = np.full((400, 640, 3), 200, np.uint8)
    picture[:, 320:] = 50
    out = images.preprocess(picture, None, 96)
    assert out.min() >= 50
    assert (out[:, :47] == 200).all()
    assert (out[:, 49:] == 50).all()


@pytest.mark.parametrize("size", [(224, 224), (96, 50), (500, 700), (480, 640)])
def test_resize_equals_pil(size: tuple[int, int]) -> None:
    pil = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    want = np.asarray(pil.fromarray(picture).resize(size[::-1], pil.Resampling.BILINEAR))
    difference = np.abs(images.resize(picture, *size).astype(int) - want)
    assert difference.max() <= 2  # PIL works in fixed point: ties round differently in either pass
    assert (difference > 1).mean() < 1e-4


def test_preprocess_equals_resizing_twice() -> None:
    picture = _picture(400, 640)
    box = images.crop_box("clothes_folding", "head")
    twice = images.resize(images.resize(images.crop(picture, box), 280, 280), 224, 224)
    assert np.abs(images.preprocess(picture, box, 224).astype(int) - twice).max() <= 2


def test_shrinking_by_two_matches_the_triangle_by_hand() -> None:
    row = np.array([0, 0, 0, 0, 80, 0, 0, 0], np.uint8)
    picture = np.repeat(row[None, :, None], 3, -1)
    # the centre of output 2 lies at 5.0; pixel 4 (centre 4.5) is 0.25 supports away: weight 0.75 of a sum of 2
    np.testing.assert_array_equal(images.resize(picture, 1, 4)[0, :, 0], [0, 10, 30, 0])


def test_resize_is_the_same_in_a_batch() -> None:
    batch = np.stack([_picture(60, 80), _picture(60, 80)[::-1]])
    out = images.resize(batch, 32, 24)
    np.testing.assert_array_equal(out[1], images.resize(batch[1], 32, 24))
    assert out.shape == (2, 32, 24, 3)


def test_resize_with_pad_is_centred_on_black() -> None:
    out = images.resize_with_pad(np.full((480, 640, 3), 255, np.uint8), 224, 224)
    assert (out[:28] == 0).all() and (out[196:] == 0).all() and (out[28:196] == 255).all()


def test_jpeg_round_trip() -> None:
    picture = images.resize(_picture(64, 96)[..., [0, 1, 1]], 64, 96)
    back = images.decode_jpeg(images.encode_jpeg(picture))
    assert np.abs(back.astype(int) - picture).mean() < 2
    with pytest.raises(ValueError, match="float64"):
        images.encode_jpeg(picture / 255)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\x00" * 40 + b[40:]])
def test_damage_is_named(damage) -> None:
    data = images.encode_jpeg(_picture(64, 64))
    with pytest.raises(images.DamagedImage, match="episode e7, camera head, step 12"):
        images.decode_jpeg(damage(data), "e7", "head", 12)


def test_the_papers_cameras_are_cropped_and_others_are_padded() -> None:
    rng = np.random.default_rng(0)
    wrist = rng.integers(0, 256, (*images.WRIST_PX, 3), np.uint8)
    ours = images.fitted(wrist, "phone_packaging", "left_wrist", 224)
    np.testing.assert_array_equal(ours, images.preprocess(wrist, (192, 304, 864, 976), 224))
    head = rng.integers(0, 256, (*images.HEAD_PX, 3), np.uint8)
    np.testing.assert_array_equal(
        images.fitted(head, "clothes_folding", "head", 224), images.preprocess(head, (120, 50, 400, 590), 224)
    )
    for task, picture, camera in (("", wrist, "left_wrist"), ("phone_packaging", head, "left_wrist")):
        padded = images.resize_with_pad(picture, 224, 224)
        np.testing.assert_array_equal(images.fitted(picture, task, camera, 224), padded)
