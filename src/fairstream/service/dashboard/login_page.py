"""The page that asks for a key, and the page that says what is not there."""

from __future__ import annotations

from fairstream.pages.markup import element
from fairstream.service.dashboard.parts import document


def login_page(problem: str | None = None, *, to: str = "/") -> str:
    """Asks for a key; after it the page `to` is shown."""
    form = element(
        "form",
        element("label", "API key", for_="key"),
        element(
            "input",
            id="key",
            name="key",
            type="password",
            autocomplete="current-password",
            required=True,
            autofocus=True,
            maxlength="200",
            aria_describedby="problem about-keys" if problem else "about-keys",
            aria_invalid="true" if problem else None,
        ),
        element("input", type="hidden", name="to", value=to),
        element("p", problem, id="problem", role="alert", class_="problem") if problem else None,
        element("button", "Sign in", type="submit"),
        method="post",
        action="/login",
        class_="login",
    )
    about = element(
        "p",
        "A key of scope read or admin. ",
        element("code", "fairstream keys add"),
        " makes one; it is shown once. You stay signed in for 12 hours, in this browser.",
        id="about-keys",
        class_="note",
    )
    header = (element("p", "fairstream", class_="brand"), element("h1", "Sign in"))
    return document("Sign in · fairstream", header=header, main=(form, about), is_signed_in=False)


def message_page(title: str, sentence: str, *, is_signed_in: bool = True) -> str:
    """A sentence, and the way back."""
    header = (element("p", element("a", "fairstream", href="/"), class_="brand"), element("h1", title))
    back = element("p", element("a", "To the overview", href="/"))
    return document(
        f"{title} · fairstream", header=header, main=(element("p", sentence), back), is_signed_in=is_signed_in
    )
