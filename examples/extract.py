"""A validated object out of a page of text: the schema of a pydantic model rules what can be written."""

import json
from typing import Literal

import pydantic

from mmspec_agent import Engine

PAGE = """\
Harbour Museum, Bergen. Open Tuesday to Sunday from 10:00 to 17:00, closed on Mondays.
Adults pay 14.50 euros, children under 12 enter free. The museum was founded in 1962 and
shows 340 model ships. Guided tours start at 11:00 and 15:00. Write to tours@harbour.example
or call +47 55 12 34 56. The cafe on the first floor serves fish soup and waffles.
"""


class Museum(pydantic.BaseModel):
    """What to look for in the page."""

    name: str = pydantic.Field(max_length=60)
    city: str = pydantic.Field(max_length=40)
    founded: int
    adult_price: float
    closed_on: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    model_ships: int


def main() -> None:
    """One question, one object."""
    engine = Engine.from_pretrained("reference-lm")
    schema = json.dumps(Museum.model_json_schema()["properties"])
    question = f"{PAGE}\nExtract the museum from this page as JSON with these fields: {schema}"
    reply = engine.chat(question, response_format=Museum, max_new_tokens=120)
    museum: Museum = reply.parsed
    print(museum.model_dump_json(indent=2))
    stats = reply.stats
    print(f"\n{stats.emitted} tokens in {stats.forwards} forwards; who paid: {dict(stats.sources.most_common(4))}")


if __name__ == "__main__":
    main()
