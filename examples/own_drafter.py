"""A drafter in 20 lines: phrases that your answers often hold. A wrong guess costs time, never the answer."""

from dataclasses import dataclass

from mmspec_agent import DraftTree, DraftView, Engine, NgramDrafter, Outcome


@dataclass(frozen=True)
class PhraseDrafter:
    """Where the text ends like the beginning of a known phrase, guesses the rest of that phrase."""

    phrases: tuple[tuple[int, ...], ...]
    name: str = "phrase"
    needs_hidden: bool = False
    keeps_to_constraint: bool = False

    def open(self) -> "PhraseDrafter":
        return self  # nothing is learned, so the drafter is its own state

    def propose(self, view: DraftView, budget: int) -> DraftTree:
        for phrase in self.phrases:
            for size in range(min(len(phrase) - 1, len(view.tokens)), 1, -1):
                if tuple(view.tokens[-size:]) == phrase[:size]:
                    return DraftTree.chain(phrase[size:][:budget], self.name)
        return DraftTree()

    def observe(self, outcome: Outcome) -> None:
        """Called after every verified tree; a drafter that learns would learn here."""


PHRASES = (
    "Dear [Customer Name],\n\nI hope this message finds you well. I am writing to",
    "Please let me know if you have any questions. Thank you for your time and consideration.",
)
QUESTION = "Write a short, polite email to a customer: the parcel comes on Friday."

# fp32, because the claim is about every token: in bf16 a near-tie may fall the other way.
engine = Engine.from_pretrained("reference-lm", dtype="float32", drafters=[])
plain = engine.chat(QUESTION, max_new_tokens=80)

phrases = tuple(tuple(engine.tokenizer.encode(phrase)) for phrase in PHRASES)
engine = Engine(engine.model, engine.tokenizer, drafters=[PhraseDrafter(phrases), NgramDrafter()])
reply = engine.chat(QUESTION, max_new_tokens=80)

print(reply.text)
print(f"\n{reply.stats.forwards} forwards instead of {plain.stats.forwards}, paid for by {dict(reply.stats.sources)}")
print(f"the same tokens: {reply.token_ids == plain.token_ids}")
