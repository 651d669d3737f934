"""A conversation about a picture: follow-ups neither run the vision tower nor read the picture again."""

from PIL import Image, ImageDraw

from mmspec_agent import Engine

picture = Image.new("RGB", (192, 192), (20, 25, 60))
draw = ImageDraw.Draw(picture)
draw.polygon([(96, 30), (50, 110), (142, 110)], fill=(240, 200, 40))
draw.ellipse((120, 120, 170, 170), fill=(60, 190, 90))

engine = Engine.from_pretrained("reference-vlm")
session = engine.session(max_new_tokens=100)


def ask(question: str, *pictures: Image.Image) -> None:
    """One turn, with what was computed for it."""
    parts = [{"type": "image", "image": one} for one in pictures]
    reply = session.send({"role": "user", "content": [*parts, {"type": "text", "text": question}]})
    stats = reply.stats
    print(f"\n> {question}\n{reply.text}")
    read = f"{stats.prefilled_tokens} of {stats.prompt_tokens} prompt tokens read"
    print(f"  [vision tower {stats.vision_passes}x, {read}]")


ask("How many things are in the picture?", picture)
ask("What color is the triangle?")
ask("Describe the picture in detail.")

# Another conversation about the same picture copies what was computed for the first.
session = engine.session(max_new_tokens=40)
ask("What is the background?", picture)
