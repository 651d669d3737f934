"""Regular expressions of the string formats the engine enforces, for finishing a text that was begun."""

from __future__ import annotations

from typing import Final

# Readers of dates know no year 0, no 29 February of common years and no leap seconds: none of them is written.
_TIME: Final = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_YEAR: Final = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP: Final = (
    r"(?:(?:[0-9][1-9]|[1-9]0)(?:0[48]|[2468][048]|[13579][26])|00(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:0[48]|[2468][048]|[13579][26])00)"
)
_DATE: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_OCTET: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_IPV4: Final = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_ATOM: Final = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_MAIL_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_H16: Final = r"[0-9a-fA-F]{1,4}"
_SAFE: Final = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"


def _ipv6() -> str:
    forms = [rf"(?:{_H16}:){{7}}{_H16}"]
    for before in range(8):
        head = "" if before == 0 else rf"(?:{_H16}:){{{before - 1}}}{_H16}"
        after = 7 - before
        tail = rf"(?:(?:{_H16}:){{0,{after - 1}}}{_H16})?" if after > 0 else ""
        forms.append(f"{head}::{tail}")
    return "|".join(f"(?:{form})" for form in forms)


_HOST: Final = rf"(?:\[(?:{_ipv6()})\]|(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{{2}})*)"
_AUTHORITY: Final = rf"(?:(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{{2}})*@)?{_HOST}(?::[0-9]*)?(?:/{_SAFE}*)*"

FORMATS: Final[dict[str, str]] = {
    "time": _TIME,
    "date": _DATE,
    "date-time": f"(?:{_DATE})[tT](?:{_TIME})",
    "duration": (
        r"P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
        r"(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?"
        r"|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)|[0-9]+W)"
    ),
    "email": rf"{_ATOM}(?:\.{_ATOM})*@(?:{_MAIL_LABEL}(?:\.{_MAIL_LABEL})*|\[{_IPV4}\])",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "uri": (
        rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?://{_AUTHORITY}|/(?:{_SAFE}+(?:/{_SAFE}*)*)?|{_SAFE}+(?:/{_SAFE}*)*|)"
        rf"(?:\?(?:{_SAFE}|[/?])*)?(?:#(?:{_SAFE}|[/?])*)?"
    ),
}

STANDARD_FORMATS: Final = frozenset(FORMATS) | {
    "idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer",
    "relative-json-pointer", "regex",
}  # fmt: skip
"""Formats the specification defines; any other name is an annotation and asserts nothing."""
