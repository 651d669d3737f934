"""Ask about a picture: the answer, and what it cost to look."""

from PIL import Image, ImageDraw

from mmspec_agent import Engine

picture = Image.new("RGB", (192, 192), (235, 235, 235))
draw = ImageDraw.Draw(picture)
draw.ellipse((25, 40, 85, 100), fill=(215, 40, 40))
draw.rectangle((115, 95, 165, 145), fill=(40, 90, 215))

engine = Engine.from_pretrained("reference-vlm")
question = {"type": "text", "text": "Describe the picture in detail."}
reply = engine.chat(
    [{"role": "user", "content": [{"type": "image", "image": picture}, question]}],
    max_new_tokens=120,
)
print(reply.text)
stats = reply.stats
print(f"[vision tower ran {stats.vision_passes}x; {stats.emitted} tokens in {stats.forwards} forwards]")
