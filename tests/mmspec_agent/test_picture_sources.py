"""Hundreds of odd pictures: each becomes 8-bit RGB by a stated rule, or an error of ours that names what is wrong."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import random
import socket
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec_agent.core.errors import MMSpecError, PictureError, PromptError
from mmspec_agent.pictures import Picture, PictureRules, extract, load_picture

RULES = PictureRules(max_pixels=10_000)
REMOTE = PictureRules(allow_remote=True)


def split_picture(width: int = 12, height: int = 6) -> Image.Image:
    image = Image.new("RGB", (width, height), (250, 10, 10))
    image.paste((10, 10, 250), (width // 2, 0, width, height))
    return image


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


PNG = encoded(split_picture())
TEXT = base64.b64encode(PNG).decode()
DIGEST = load_picture(PNG).digest

DTYPES = (
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 longdouble complex64 O U3 M8[s]"
)
SHAPES: list[tuple[int, ...]] = [
    (), (3,), (4, 5), (4, 5, 3), (3, 4, 5), (4, 5, 4), (4, 5, 1), (1, 4, 5), (4, 5, 2), (3, 4, 3), (1, 1, 3), (0, 4, 3),
    (4, 0), (1, 4, 5, 3), (2, 4, 5, 3), (1, 1, 4, 5, 3), (200, 200), (3, 200, 200),
]  # fmt: skip


def odd_arrays() -> Iterator[Any]:
    for dtype, shape, low in itertools.product(DTYPES.split(), SHAPES, (0, 1, 200, -4, 70_000)):
        with np.errstate(all="ignore"):
            try:
                yield np.full(shape, low).astype(dtype)
            except (TypeError, ValueError, OverflowError):
                continue
    yield np.full((4, 5), np.nan)
    yield np.full((4, 5), np.inf)
    yield np.zeros((4, 5), dtype=[("r", "u1"), ("g", "u1")])
    yield np.ma.masked_less(np.arange(20).reshape(4, 5), 3)
    yield np.full((4, 5), 30000, dtype=">u2")
    yield np.array([[None, "x"], [3, object()]], dtype=object)


def odd_tensors() -> Iterator[Any]:
    dtypes = [
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int8,
        torch.int64,
        torch.complex64,
        torch.float8_e4m3fn,
    ]
    for dtype, shape in itertools.product(dtypes, SHAPES):
        yield torch.zeros(shape).to(dtype)
    yield torch.zeros(3, 4, 5, device="meta")
    yield torch.eye(4).to_sparse()
    yield torch.eye(4).to_sparse_csr()
    yield torch.zeros(3, 4, 5, requires_grad=True)
    yield torch.quantize_per_tensor(torch.rand(3, 4, 5), 0.1, 0, torch.quint8)
    yield torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    yield torch.full((3, 4, 5), float("nan"))


class Reads:
    """An object with a read of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self, *_: Any) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def odd_objects() -> Iterator[Any]:
    yield from (None, True, 3, 2.5, 1j, object(), object, len, [], [1, 2], {}, {"url": 3}, set(), range(4), Path("/"))
    yield from (Reads(None), Reads("text"), Reads(b""), Reads(b"x"), Reads(OSError("gone")), Reads(KeyError("k")))
    closed = io.BytesIO(PNG)
    closed.close()
    yield from (closed, io.StringIO("text"), io.BytesIO(), io.BytesIO(b"\x89PNG"))
    image = Image.open(io.BytesIO(PNG))
    image.close()
    yield image


def odd_texts() -> Iterator[str]:
    yield from ("", " ", "\0", "a" * 5000, "no.png", "~nobody/x.png", "/dev/zero", "/", ".", "C:\\x.png", "é\ud800.png")
    yield from (
        "file:",
        "file://",
        "file:///no.png",
        "file://host/x.png",
        "file://[::1",
        "ftp://h/x",
        "s3://b/x",
        "://",
    )
    yield from (
        "data:",
        "data:,",
        "data:image/png",
        "data:;base64,",
        "data:;base64,%",
        "data:;base64,aGVsbG8",
        "data:,hi",
    )
    hosts = ("", "[::1", "h h", "127.0.0.1:x", "127.0.0.1:99999", "user:pw@", "é.invalid", "\n", "." * 300, "%00")
    yield from (f"http://{host}/x y.png?q= é#f" for host in hosts)
    yield from ("http:", "http:/", "HTTP://", "https://", "http:x", "QUJD" * 20, "=" * 40, "====", "A" * 33)


def damaged_files() -> Iterator[bytes]:
    """Files of many formats with bytes changed, cut off and doubled."""
    rng = random.Random(0)
    for format in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "ICO", "JPEG2000", "PCX", "DDS"):
        try:
            body = encoded(split_picture(), format)
        except (OSError, KeyError, ValueError):
            continue
        yield body + body
        for _ in range(12):
            broken = bytearray(body[: rng.randint(1, len(body))] if rng.random() < 0.4 else body)
            for _ in range(rng.randint(1, 6)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            yield bytes(broken)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [odd_arrays, odd_tensors, odd_objects, odd_texts, damaged_files])
def test_an_odd_picture_is_rgb_or_an_error_of_ours(kind: Callable[[], Iterator[Any]]) -> None:
    number = 0
    for number, source in enumerate(kind(), start=1):  # noqa: B007
        with contextlib.suppress(PictureError):
            picture = load_picture(source, RULES if not isinstance(source, str) else PictureRules(True, True, 10_000))
            assert picture.image.mode == "RGB"
            assert picture.size[0] * picture.size[1] <= 10_000
    assert number >= 20


def test_the_odd_ones_are_many() -> None:
    kinds = (odd_arrays, odd_tensors, odd_objects, odd_texts, damaged_files)
    assert sum(len(list(kind())) for kind in kinds) > 800


MODES: dict[str, tuple[Any, tuple[int, int, int]]] = {
    "1": (1, (255, 255, 255)),
    "L": (90, (90, 90, 90)),
    "I": (90, (90, 90, 90)),
    "I;16": (90 * 257, (90, 90, 90)),
    "I;16B": (90 * 257, (90, 90, 90)),
    "F": (1.0, (255, 255, 255)),
    "LA": ((90, 255), (90, 90, 90)),
    "La": ((90, 255), (90, 90, 90)),
    "RGB": ((9, 90, 200), (9, 90, 200)),
    "RGBX": ((9, 90, 200, 0), (9, 90, 200)),
    "RGBA": ((9, 90, 200, 0), (255, 255, 255)),
    "RGBa": ((9, 90, 200, 255), (9, 90, 200)),
    "CMYK": ((246, 165, 55, 0), (9, 90, 200)),
    "YCbCr": ((128, 128, 128), (128, 128, 128)),
    "HSV": ((0, 0, 77), (77, 77, 77)),
    "LAB": ((128, 128, 128), (119, 118, 119)),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_pillow(mode: str) -> None:
    colour, wanted = MODES[mode]
    found = load_picture(Image.new(mode, (3, 2), colour)).image.getpixel((1, 1))
    assert isinstance(found, tuple)
    assert max(abs(a - b) for a, b in zip(found, wanted)) <= 2


def test_palettes_with_transparency() -> None:
    image = split_picture().quantize(4)
    clear = encoded(image, transparency=image.getpixel((0, 0)))
    assert load_picture(clear).image.getpixel((0, 0)) == (255, 255, 255)
    assert load_picture(image.convert("PA")).image.getpixel((0, 0)) == (250, 10, 10)


@pytest.mark.parametrize("values", [[[0, 90], [255, 7]], [[0, 0], [0, 1]]])
def test_32_bit_grey_is_read_as_the_same_array(values: list[list[int]]) -> None:
    array = np.array(values, dtype=np.int32)
    assert load_picture(Image.fromarray(array)).digest == load_picture(array).digest
    assert load_picture(array).digest == load_picture(array.astype(np.uint8)).digest


def test_layouts() -> None:
    """Tensors are C×H×W where both fit; arrays of such a shape are refused, as nobody can tell."""
    array = np.random.default_rng(0).integers(0, 256, (7, 4, 3), dtype=np.uint8)
    first = torch.from_numpy(np.moveaxis(array, -1, 0).copy())
    for width in (4, 3, 1):
        assert load_picture(first[:, :, :width]).digest == load_picture(array[:, :width]).digest
    assert load_picture(array[:1]).size == (4, 1)
    with pytest.raises(PictureError, match="3 rows of H×W×C or 3 channels"):
        load_picture(first.numpy())
    with pytest.raises(PictureError, match="2 pictures"):
        load_picture(np.zeros((2, 8, 8, 3)))


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"data:image/png;BASE64,{TEXT}",
        f"DATA:image/png;charset=x;base64,{TEXT.rstrip('=')}",
        f"data:;base64,{urllib.parse.quote(TEXT, safe='')}",
        f"data:image/png;base64, {TEXT[:40]}\n  {TEXT[40:]}\n",
        "data:image/png;base64," + TEXT.replace("+", "-").replace("/", "_"),
        "data:image/png," + urllib.parse.quote_from_bytes(PNG),
        TEXT,
        TEXT.rstrip("="),
    ],
)
def test_spellings_of_data_urls(url: str) -> None:
    assert load_picture(url).digest == DIGEST
    assert load_picture(url, PictureRules(allow_local=False)).digest == DIGEST


def test_open_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    written = io.BytesIO()
    written.write(PNG)  # its position is at the end
    with (tmp_path / "a.png").open("rb") as file, tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(PNG)
        sources = [file, spooled, written, Reads(PNG), bytearray(PNG), memoryview(PNG)]
        assert {load_picture(source).digest for source in sources} == {DIGEST}


FORMS: list[dict[str, Any]] = [
    {"type": "image", "image": PNG},
    {"type": "image", "base64": f"data:image/png;base64,{TEXT}"},
    {"type": "image", "image": {"url": f"data:image/png;base64,{TEXT}"}},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{TEXT}"}},
    {"type": "input_image", "image_url": f"data:image/png;base64,{TEXT}", "detail": "auto"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}},
    {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{TEXT}"}},
    {"type": "image", "source": {"bytes": PNG}},
    {"type": "image", "image": io.BytesIO(PNG)},
]


@pytest.mark.parametrize("part", FORMS)
def test_forms_of_parts(part: dict[str, Any]) -> None:
    found = extract([{"role": "user", "content": [part, {"type": "text", "text": "x"}]}], RULES)
    assert [picture.digest for picture in found.pictures] == [DIGEST]


def test_pictures_by_the_keys_of_a_message() -> None:
    """Ollama's form, one value or several, and pictures that stand in the content themselves."""
    image = split_picture()
    two = [{"type": "image"}, {"type": "image"}]
    for given in ({"images": [TEXT, PNG]}, {"images": (image, image)}, {"image": image, "images": [image]}):
        found = extract([{"role": "user", "content": "what?", **given}], RULES)
        assert {p.digest for p in found.pictures} == {DIGEST}
        assert found.messages == [{"role": "user", "content": [*two, "what?"]}]
    found = extract([{"role": "user", "content": [image, "what?", np.asarray(image)]}], RULES)
    assert len(found.pictures) == 2
    found = extract([{"role": "user", "content": [{"type": "image", "image": [image, PNG]}]}], RULES)
    assert found.messages[0]["content"] == two
    assert extract([{"role": "user", "content": "x", "images": [], "audio": None}], RULES).pictures == ()


@pytest.mark.parametrize("key", ["videos", "audio", "files", "image_url"])
def test_other_media_of_a_message_is_refused_by_name(key: str) -> None:
    with pytest.raises(PromptError, match=f"message 0 has the key '{key}'"):
        extract([{"role": "user", "content": "x", key: ["a"]}], RULES)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image"},
        {"type": "image", "image": ""},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {"type": "image", "source": {"data": 3}},
        {"type": "image", "base64": ["x"]},
        {"type": "image", "image": [[0, 1], [2, 3]]},
        {"type": "image_url", "image_url": {"url": None}},
        {"type": "image", "image": PNG, "url": "x.png"},
    ],
)
def test_parts_that_hold_no_picture(part: dict[str, Any]) -> None:
    with pytest.raises(PictureError, match="message 0"):
        extract([{"role": "user", "content": [part]}], RULES)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_garbage_exif_is_harmless(exif: bytes) -> None:
    for format in ("JPEG", "PNG", "WEBP"):
        assert load_picture(encoded(split_picture(), format, exif=exif)).size == (12, 6)


@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = np.asarray(load_picture(encoded(split_picture(), "PNG", exif=exif)).image)
    assert found.shape[:2] == ((12, 6) if 5 <= orientation <= 8 else (6, 12))
    corner = found[0, 0].tolist()
    assert corner == ([10, 10, 250] if orientation in (2, 3, 7, 8) else [250, 10, 10])


def test_a_picture_drawn_on_later_stays_as_it_was() -> None:
    image = split_picture()
    picture = load_picture(image)
    image.paste((0, 0, 0), (0, 0, 12, 6))
    assert Picture.of(picture.image).digest == picture.digest == DIGEST


@contextlib.contextmanager
def server(*answers: bytes) -> Iterator[str]:
    """Sends each connection the next of ``answers``, whatever it asks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5)
                    connection.recv(4096)
                    connection.sendall(answer.replace(b"PORT", str(listener.getsockname()[1]).encode()))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


def ok(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def moved(place: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ((b"SSH-2.0-OpenSSH_9.6\r\n",), "no HTTP server"),
        ((b"",), "no HTTP server|cannot be fetched"),
        ((b"\x16\x03\x01\x02\0" * 40,), "no HTTP server"),
        ((b"HTTP/1.1 999 \r\n\r\n",), "999"),
        ((b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",), "404"),
        ((ok(PNG, len(PNG) + 40),), "broke off"),
        ((ok(b""),), "empty"),
        ((ok(b"<html>sorry</html>"),), "not a picture"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",), "cannot be fetched"),
        ((moved("file:///etc/hostname"),), "cannot be fetched"),
        ((moved("ftp://127.0.0.1/x"),), "cannot be fetched"),
        ((moved("http://[::1"),), "cannot be fetched"),
        (tuple(moved("http://127.0.0.1:PORT/again") for _ in range(5)), "cannot be fetched"),
    ],
)
def test_servers_that_give_no_picture(answers: tuple[bytes, ...], text: str) -> None:
    with server(*answers) as url, pytest.raises(PictureError, match=text) as caught:
        load_picture(f"{url}/x.png?token=s3cret", REMOTE)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("path", ["/a b.png", "/é ü.png?q=1 2", "/%20.png", "/x.png#part"])
def test_addresses_are_quoted(path: str) -> None:
    with server(ok(PNG)) as url:
        assert load_picture(f"{url}{path}", REMOTE).digest == DIGEST
    with server(moved("http://127.0.0.1:PORT/b.png"), ok(PNG)) as url:
        assert load_picture(f"  {url}{path} ", REMOTE).digest == DIGEST


@pytest.mark.parametrize("url", ["http://user:s3cret@127.0.0.1:1/x?t=s3cret", "http://127.0.0.1:1/x?t=s3cret"])
def test_no_error_shows_a_password(url: str) -> None:
    for rules in (REMOTE, PictureRules()):
        with pytest.raises(MMSpecError) as caught:
            load_picture(url, rules)
        assert "s3cret" not in str(caught.value)
