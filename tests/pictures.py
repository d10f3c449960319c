"""Image files as people have them, of many kinds, some of them odd."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

PIXELS = np.random.default_rng(0).integers(0, 255, (10, 15, 3), "uint8")
PHOTO = Image.fromarray(PIXELS.repeat(2, 0).repeat(2, 1))  # 30 x 20
TRANSPARENT = PHOTO.convert("RGBA")
TRANSPARENT.putalpha(Image.linear_gradient("L").resize(PHOTO.size))
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
XMP_ELEMENT = b"<x:xmpmeta><tiff:Orientation>5</tiff:Orientation></x:xmpmeta>"
XMP_NAME = b"http://ns.adobe.com/xap/1.0/\0"
# Type of an entry in Exif, and its code in `struct`.
TYPES = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 11: "f"}


def encode(image, kind="PNG", **options):
    """Return the file of an image, or of pixels (H, W[, C])."""
    stream = io.BytesIO()
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    image.save(stream, kind, **options)
    return stream.getvalue()


def exif(order="<", kind=3, value=6, start=b"Exif\0\0"):
    """Return Exif data with an orientation of a type."""
    number = struct.pack(order + TYPES[kind], value).ljust(4, b"\0")
    head = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "IHHHI", 8, 1, 0x0112, kind, 1)
    return start + head + entry + number + bytes(4)


def segment(content, marker=0xE1):
    """Return a segment of a JPEG."""
    size = struct.pack(">H", len(content) + 2)
    return bytes([0xFF, marker]) + size + content


def jpeg(*segments):
    """Return a JPEG that begins with segments."""
    content = encode(PHOTO, "JPEG", quality=92)
    return content[:2] + b"".join(segments) + content[2:]


def png(kind, content, place=33):
    """Return a PNG with a chunk of one's own at a place."""
    chunk = struct.pack(">I", len(content)) + kind + content
    chunk += struct.pack(">I", zlib.crc32(kind + content))
    whole = encode(PHOTO, "PNG")
    return whole[:place] + chunk + whole[place:]


def gif(box, transparent=None, has_palette=False, size=(20, 20)):
    """Return a GIF whose first frame is smaller than the picture, or larger.

    Args:
        box: Left, top, width and height of the frame.
        transparent: The index of the transparent colour.
        has_palette: Whether the frame has colours of its own.
        size: Of the picture.
    """
    bits = "".join(  # A pixel is a code of 3 bits; 4 begins anew, 5 ends.
        f"{code:03b}"[::-1]
        for index in range(box[2] * box[3])
        for code in ([4, 0] if index % 2 == 0 else [1])
    )
    bits += f"{5:03b}"[::-1]
    data = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
    colours = bytes([200, 40, 40, 40, 60, 200, 9, 99, 9, 1, 2, 3])
    control = b""
    if transparent is not None:
        control = b"!\xf9\x04\x01\0\0" + bytes([transparent, 0])
    return b"".join(
        [
            b"GIF89a" + struct.pack("<HH", *size) + b"\xf1\1\0" + colours,
            b"!\xfe\5hello\3you\0" + control,
            b"," + struct.pack("<4H", *box),
            b"\x81" + colours[::-1] if has_palette else b"\0",
            b"\2",
            *(
                bytes([len(data[i : i + 255])]) + data[i : i + 255]
                for i in range(0, len(data), 255)
            ),
            b"\0;",
        ]
    )


def tiff(pixels, bits, sample=1, white=1):
    """Return a grey TIFF of 16 x 16 pixels.

    Args:
        pixels: The bytes of the pixels.
        bits: Bits of a pixel.
        sample: 1 for whole numbers, 2 for signed ones, 3 for floats.
        white: 1 if the largest number is white, 0 if it is black.
    """
    entries = [
        *((256, 4, 16), (257, 4, 16), (258, 3, bits), (259, 3, 1)),
        *((262, 3, white), (273, 4, 0), (277, 3, 1), (278, 4, 16)),
        *((279, 4, len(pixels)), (339, 3, sample)),
    ]
    start = 14 + 12 * len(entries)
    content = b"II*\0" + struct.pack("<IH", 8, len(entries))
    for tag, kind, value in entries:
        value = start if tag == 273 else value
        content += struct.pack("<HHII", tag, kind, 1, value)
    return content + bytes(4) + pixels


WEBP = {"lossless": True}
# Those that TensorFlow reads as well.
COMMON = {
    "plain.jpg": jpeg(),
    "progressive.jpg": encode(PHOTO, "JPEG", progressive=True),
    "grey.jpg": encode(PHOTO.convert("L"), "JPEG"),
    "cmyk.jpg": encode(PHOTO.convert("CMYK"), "JPEG"),
    "far.jpg": jpeg(*[segment(bytes(60_000), 0xE2)] * 2, segment(exif())),
    "xmp.jpg": jpeg(segment(XMP_NAME + XMP)),
    "xmp_element.jpg": jpeg(segment(XMP_NAME + XMP_ELEMENT)),
    "xmp_and_exif.jpg": jpeg(segment(XMP_NAME + XMP), segment(exif())),
    "damaged_exif.jpg": jpeg(segment(b"Exif\0\0no TIFF")),
    "two_frames.mpo": encode(
        PHOTO, "MPO", save_all=True, append_images=[PHOTO], exif=exif()
    ),
    **{
        f"type_{kind}{order}.jpg": jpeg(segment(exif(order, kind)))
        for kind in TYPES
        for order in "<>"
    },
    **{
        f"turn_{value}{order}.jpg": jpeg(segment(exif(order, 3, value)))
        for value in range(1, 9)
        for order in "<>"
    },
    "alpha.png": encode(TRANSPARENT, "PNG"),
    "grey_alpha.png": encode(TRANSPARENT.convert("LA"), "PNG"),
    "palette.png": encode(PHOTO.quantize(8), "PNG", transparency=0),
    "bits.png": encode(PHOTO.convert("1"), "PNG"),
    "deep.png": encode(
        Image.fromarray(PIXELS[..., 0].astype("uint16") * 257), "PNG"
    ),
    "exif.png": png(b"eXIf", exif(start=b"")),
    "late_exif.png": png(b"eXIf", exif(">", start=b""), place=-12),
    "damaged_exif.png": png(b"eXIf", b"no TIFF"),
    "xmp.png": png(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP),
    "plain.bmp": encode(PHOTO, "BMP"),
    "alpha.bmp": encode(TRANSPARENT, "BMP"),
    "palette.bmp": encode(PHOTO.quantize(9), "BMP"),
    "lossy.webp": encode(PHOTO, "WEBP"),
    "alpha.webp": encode(TRANSPARENT, "WEBP", **WEBP, exact=True),
    "lossy_alpha.webp": encode(TRANSPARENT, "WEBP"),
    "exif.webp": encode(PHOTO, "WEBP", **WEBP, exif=exif()),
    "bare_exif.webp": encode(PHOTO, "WEBP", **WEBP, exif=exif(start=b"")),
    "xmp.webp": encode(PHOTO, "WEBP", **WEBP, xmp=XMP),
    "transparent.gif": encode(PHOTO.quantize(20), "GIF", transparency=3),
    "film.gif": encode(
        PHOTO.quantize(20),
        "GIF",
        save_all=True,
        append_images=[TRANSPARENT.convert("L")],
        comment=b"x" * 300,
    ),
    "whole.gif": gif((0, 0, 20, 20), 1),
    "part.gif": gif((7, 5, 10, 9)),
    "transparent_part.gif": gif((7, 5, 10, 9), 1),
    "part_with_colours.gif": gif((0, 5, 10, 15), 2, True),
    "larger_frame.gif": gif((15, 5, 10, 9)),
}
# Those that Pillow alone reads.
OTHER = {
    "avif.jpg": encode(PHOTO, "AVIF"),
    "tiff.jpg": encode(TRANSPARENT, "TIFF"),
    "turned.tif": encode(PHOTO, "TIFF", tiffinfo={0x0112: 6}),
    "film.webp": encode(
        PHOTO,
        "WEBP",
        save_all=True,
        append_images=[PHOTO.transpose(Image.Transpose.ROTATE_180)],
        **WEBP,
    ),
    "bits.bmp": encode(PHOTO.convert("1"), "BMP"),
    "sign.ppm": encode(PHOTO, "PPM"),
    "wavelets.jp2": encode(PHOTO, "JPEG2000"),
    "white_12.tif": tiff(b"\xff" * 384, 12),
    "white_is_zero.tif": tiff(bytes(512), 16, white=0),
}
UNREADABLE = {
    "float.tif": tiff(bytes(1024), 32, sample=3),
    "signed.tif": tiff(bytes(512), 16, sample=2),
    "signed_32.tif": tiff(bytes(1024), 32, sample=2),
    "empty.jpg": b"",
    "short.jpg": b"\xff\xd8\xff",
    "no_image.png": b"\x89PNG\r\n\x1a\n",
    "cut.jpg": jpeg()[:400],
    "cut.webp": encode(PHOTO, "WEBP")[:100],
    "short.gif": b"GIF89a",
    "broken.tif": b"II*\0 and nothing more",
    "text.jpg": b"<!DOCTYPE html>",
    # A chunk in the middle whose name is no name; Pillow calls it a
    # SyntaxError.
    "broken.png": png(b"IDAT", bytes(9)).replace(b"IDAT", b"\x8d\3\x98\xa6", 1),
}
