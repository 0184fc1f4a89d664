"""Writes the pictures of this folder, and prints what Pillow reads in them: python3 make.py (Pillow 12)."""
from PIL import Image, ImageOps

quarters = Image.new("RGB", (32, 16))
for left, top, colour in [(0, 0, (200, 30, 30)), (16, 0, (30, 180, 60)), (0, 8, (40, 60, 220)), (16, 8, (230, 220, 40))]:
    quarters.paste(colour, (left, top, left + 16, top + 8))

quarters.save("colour.jpg", quality=95, subsampling=0)
quarters.save("progressive.jpg", quality=95, progressive=True)
quarters.convert("L").save("grey.jpg", quality=95)
quarters.convert("CMYK").save("cmyk.jpg", quality=95)
exif = Image.Exif()
exif[0x0112] = 6
quarters.save("rotated.jpg", quality=95, exif=exif)
quarters.save("colour.png")
quarters.convert("P", palette=Image.Palette.ADAPTIVE, colors=8).save("palette.png")
transparent = quarters.copy()
transparent.putalpha(100)
transparent.save("transparent.png")
Image.new("I;16", (32, 16), 51400).save("grey16.png")

for name in ["colour.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "rotated.jpg", "colour.png", "palette.png", "transparent.png"]:
    picture = ImageOps.exif_transpose(Image.open(name)).convert("RGB")
    width, height = picture.size
    corners = [picture.getpixel(at) for at in [(3, 3), (width - 4, 3), (3, height - 4), (width - 4, height - 4)]]
    print(name, (height, width), corners)
