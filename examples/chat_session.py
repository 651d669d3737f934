"""A conversation that keeps its KV: the second turn computes only what is new, and can go on after a restart."""

import tempfile

from mmspec_agent import Done, Engine, TextPiece

engine = Engine.from_pretrained("reference-lm")
session = engine.session(system="You answer in one or two short sentences.", max_new_tokens=60)

for question in ("What does a lighthouse do?", "Say the same in simpler words."):
    print(f"\n> {question}")
    for event in session.stream(question):
        if isinstance(event, TextPiece):
            print(event.text, end="", flush=True)
        elif isinstance(event, Done):
            stats = event.reply.stats
            print(f"\n  [{stats.prompt_tokens} prompt tokens, {stats.reused_tokens} of them kept from before;", end=" ")
            print(f"{stats.emitted} tokens in {stats.forwards} forwards]")

with tempfile.TemporaryDirectory() as folder:
    session.save(folder)
    resumed = engine.resume(folder)
    reply = resumed.send("And where does it stand?", max_new_tokens=40)
    print(f"\n(saved, resumed)\n> And where does it stand?\n{reply.text}")
    print(f"  [{reply.stats.reused_tokens} of {reply.stats.prompt_tokens} prompt tokens were kept]")
