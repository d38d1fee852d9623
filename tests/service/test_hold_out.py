"""What is held out: of users drawn by lot their own latest events, whatever other users send."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from fairstream.service.hold_out import max_events_of_user, split

KEY = b"key of the period"


def events_of(users: list[int]) -> pa.Table:
    n = np.arange(len(users))
    columns = {"user_id": [f"u{user}" for user in users], "item_id": [f"i{at}" for at in n], "time": n, "seq": n}
    return pa.table(
        columns,
        pa.schema({"user_id": pa.string(), "item_id": pa.string()} | dict.fromkeys(("time", "seq"), pa.int64())),
    )


USERS = st.lists(st.integers(0, 12), max_size=80)


@given(users=USERS, share=st.floats(0.01, 1), most=st.integers(1, 20))
def test_of_a_user_nothing_is_learned_that_is_later_than_what_is_held_out(
    users: list[int], share: float, most: int
) -> None:
    events = events_of(users)
    learned, held_out, n_surplus = split(events, KEY, share=share, max_of_user=most)
    assert len(learned) + len(held_out) + n_surplus == len(events)
    assert not set(learned["seq"].to_pylist()) & set(held_out["seq"].to_pylist())
    for user in set(events["user_id"].to_pylist()):
        own, early, late = (
            table.filter(pc.equal(table["user_id"], user))["time"].to_pylist() for table in (events, learned, held_out)
        )
        assert early + late == own[:most]  # the surplus is the user's latest
        assert len(late) in (0, max(1, int(0.4 * min(len(own), most))))


@given(users=USERS, others=USERS)
def test_what_others_send_changes_nothing_of_what_is_held_out_of_a_user(users: list[int], others: list[int]) -> None:
    alone = split(events_of(users), KEY, share=0.5, max_of_user=100).held_out
    both = split(events_of([*users, *(20 + user for user in others)]), KEY, share=0.5, max_of_user=100).held_out
    assert both["seq"].to_pylist()[: len(alone)] == alone["seq"].to_pylist()


def test_the_lot_depends_on_the_key_and_draws_the_share() -> None:
    events = events_of(list(range(4000)))
    first, again, other = (split(events, key, share=0.3, max_of_user=9).held_out for key in (KEY, KEY, b"another"))
    assert first == again
    assert abs(len(first) - 1200) < 120
    both = set(first["user_id"].to_pylist()) & set(other["user_id"].to_pylist())
    assert abs(len(both) - 360) < 90


@given(counts=st.lists(st.integers(1, 10_000), min_size=1, max_size=200), share=st.floats(0.02, 1))
def test_no_user_makes_up_more_than_the_share_of_what_counts(counts: list[int], share: float) -> None:
    users = np.array(counts)
    most = max_events_of_user(users, share)
    kept = np.minimum(users, most)
    assert most == 1 or kept.max() <= share * kept.sum()
    if users.max() <= share * users.sum():
        assert most == users.max()  # nothing is left out without need
