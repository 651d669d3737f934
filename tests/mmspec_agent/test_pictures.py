"""Whatever people hand over as a picture becomes upright RGB, or an error that names what is wrong."""

from __future__ import annotations

import base64
import io
import struct
import threading
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec_agent.core.errors import PictureError, PictureNotFound
from mmspec_agent.pictures import PictureRules, extract, load_picture

RED, BLUE = (250, 10, 10), (10, 10, 250)


def split_picture(width: int = 40, height: int = 20) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def pixels(source: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(load_picture(source).image)


def test_every_kind_of_source_gives_the_same_picture(tmp_path: Path) -> None:
    image = split_picture()
    body = encoded(image)
    path = tmp_path / "mit leerzeichen é.png"
    path.write_bytes(body)
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy())
    sources: list[Any] = [
        image,
        body,
        bytearray(body),
        path,
        str(path),
        path.as_uri(),
        "data:image/png;base64," + base64.b64encode(body).decode(),
        array,
        array.astype(np.float32) / 255,
        array.astype(np.uint16) * 257,
        np.moveaxis(array, -1, 0),
        tensor,
        tensor.permute(2, 0, 1),
        (tensor.permute(2, 0, 1).float() / 255)[None],
        load_picture(image),
    ]
    assert len({load_picture(source).digest for source in sources}) == 1


def test_message_parts_of_openai_and_transformers() -> None:
    url = "data:image/png;base64," + base64.b64encode(encoded(split_picture())).decode()
    image = split_picture()
    parts = [
        {"type": "image", "image": image},
        {"type": "image", "url": url},
        {"type": "image", "base64": url.partition(",")[2]},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}},
        {"type": "text", "text": "what?"},
    ]
    found = extract([{"role": "user", "content": parts}], PictureRules())
    assert len({p.digest for p in found.pictures}) == 1
    assert len(found.pictures) == 7
    assert found.messages[0]["content"] == [{"type": "image"}] * 7 + [{"type": "text", "text": "what?"}]


def test_exif_rotation_is_applied() -> None:
    image = split_picture()
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = load_picture(encoded(image, "JPEG", exif=exif, quality=95))
    assert upright.size == (20, 40)
    assert np.abs(np.asarray(upright.image)[2, 10].astype(int) - RED).max() < 12


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr", "LAB", "HSV", "RGBA", "LA", "RGBX"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    grey = split_picture() if mode == "LAB" else split_picture().convert("L").convert("RGB")
    if mode == "LAB":
        converted = Image.new("LAB", (4, 4))
    elif mode == "HSV":
        converted = grey.convert("HSV")
    else:
        converted = grey.convert("L").convert(mode) if mode == "LA" else grey.convert(mode)
    assert load_picture(converted).image.mode == "RGB"


def test_transparency_lies_on_white() -> None:
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    image.putpixel((0, 0), (200, 0, 0, 255))
    values = pixels(image)
    assert values[0, 0].tolist() == [200, 0, 0]
    assert values[3, 3].tolist() == [255, 255, 255]


def test_cmyk_jpeg_and_sixteen_bit_png() -> None:
    cmyk = pixels(encoded(split_picture().convert("CMYK"), "JPEG", quality=95))
    assert np.abs(cmyk[5, 5].astype(int) - RED).max() < 30
    deep = Image.fromarray(np.array([[0, 65535], [32896, 257]], dtype=np.uint16))
    assert pixels(encoded(deep))[:, :, 0].tolist() == [[0, 255], [128, 1]]
    floats = Image.fromarray(np.array([[0.0, 1.0]], dtype=np.float32), mode="F")
    assert pixels(floats)[:, :, 0].tolist() == [[0, 255]]


def test_animations_and_pages_are_refused_but_one_frame_is_a_picture() -> None:
    frames = [split_picture(), split_picture(40, 20).transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    with pytest.raises(PictureError, match="2 frames"):
        load_picture(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert load_picture(encoded(frames[0], "GIF")).size == (40, 20)


def test_one_pixel_is_a_picture() -> None:
    assert load_picture(Image.new("RGB", (1, 1), RED)).size == (1, 1)
    assert load_picture(np.zeros((1, 1, 3), dtype=np.uint8)).size == (1, 1)


def bomb(width: int, height: int) -> bytes:
    """A small PNG whose header claims many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("size", [(60_000, 60_000), (12_000, 12_000)])
def test_bombs_are_refused_by_their_header(size: tuple[int, int]) -> None:
    with pytest.raises(PictureError, match="limit is"):
        load_picture(bomb(*size))


def test_the_limit_can_be_chosen() -> None:
    with pytest.raises(PictureError, match="800 pixels"):
        load_picture(split_picture(), PictureRules(max_pixels=799))
    with pytest.raises(PictureError, match="800 pixels"):
        load_picture(np.asarray(split_picture()), PictureRules(max_pixels=799))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (b"", "empty"),
        (b"hello", "not a picture"),
        (encoded(split_picture(400, 400), "JPEG")[:900], "damaged"),
        (encoded(split_picture(400, 400))[:-300], "damaged"),
        ("data:image/png;base64,!!!", "data: URL"),
        ("data:image/png;base64,aGVsbG8=", "not a picture"),
        ("", "cannot be read"),
        (3, "int"),
        (None, "NoneType"),
        (np.zeros((2, 2, 7)), "no picture"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "empty"),
        (np.full((2, 2), np.nan), "NaN"),
        (np.full((2, 2, 3), 200.0), "0 to 1"),
        (np.full((2, 2, 3), -4), "beyond 0 to 255"),
        ("http://127.0.0.1:9/x.png", "allow_remote=True"),
        ("nul\0byte.png", "cannot be read"),
    ],
)
def test_what_is_no_picture_is_named(source: Any, text: str) -> None:
    with pytest.raises(PictureError, match=text):
        load_picture(source)


def test_files_that_are_no_pictures(tmp_path: Path) -> None:
    with pytest.raises(PictureNotFound, match="there is no picture"):
        load_picture(tmp_path / "gone.png")
    with pytest.raises(PictureError, match="cannot be read"):
        load_picture(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(b"\0\0\0 ftypisom")
    with pytest.raises(PictureError, match=r"engine\.watch"):
        load_picture(tmp_path / "clip.mp4")
    with pytest.raises(PictureError, match="paths are not read here"):
        load_picture(str(tmp_path / "clip.mp4"), PictureRules(allow_local=False))
    with pytest.raises(PictureError, match="holds no picture"):
        extract([{"role": "user", "content": [{"type": "image"}]}], PictureRules())


def test_remote_pictures_when_allowed() -> None:
    body = encoded(split_picture())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/ok.png" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert load_picture(f"{url}/ok.png", PictureRules(allow_remote=True)).size == (40, 20)
        with pytest.raises(PictureError, match="404"):
            load_picture(f"{url}/gone.png", PictureRules(allow_remote=True))
        server.shutdown()
