"""The division of slots: what holds for every division, and hand-made cases."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from toque.gatekeeper.fairness import Claim, Member, divide, split
from toque.runtime.limits import OLDEST_NEW_EVERY

WANTED = st.one_of(st.integers(0, 12), st.integers(0, 5_000))
CLAIMS = st.lists(st.tuples(WANTED, st.integers(1, 9)), max_size=24)
MEMBERS = st.lists(
    st.builds(Member, WANTED, WANTED, WANTED, st.integers(0, 1_000)), min_size=1, max_size=12
)


def claims_of(drawn: list[tuple[int, int]]) -> list[Claim]:
    return [Claim(wanted, weight, (place,)) for place, (wanted, weight) in enumerate(drawn)]


@given(st.integers(0, 20_000), CLAIMS)
def test_a_division_is_max_min_and_wastes_nothing(slots: int, drawn: list[tuple[int, int]]) -> None:
    claims = claims_of(drawn)
    shares = divide(slots, claims)
    assert sum(shares) == min(slots, sum(claim.wanted for claim in claims))
    for share, claim in zip(shares, claims, strict=True):
        assert 0 <= share <= claim.wanted
    for i, claim in enumerate(claims):
        if shares[i] == claim.wanted:
            continue
        for j, other in enumerate(claims):
            # One more for `claim` would come from someone who then had less, by weight.
            assert shares[j] * claim.weight <= (shares[i] + 1) * other.weight


@given(st.integers(0, 300), CLAIMS)
def test_the_order_of_claims_does_not_matter(slots: int, drawn: list[tuple[int, int]]) -> None:
    claims = claims_of(drawn)
    turned = divide(slots, claims[::-1])[::-1]
    assert divide(slots, claims) == turned


def test_weights_divide_in_proportion() -> None:
    shares = divide(40, [Claim(100, 3, (0,)), Claim(100, 1, (1,)), Claim(4, 1, (2,))])
    assert shares == [27, 9, 4]


def test_odd_slots_go_by_rank() -> None:
    claims = [Claim(9, 1, (rank,)) for rank in (2, 0, 1)]
    assert divide(4, claims) == [1, 2, 1]
    assert divide(5, claims) == [1, 2, 2]


@given(st.integers(0, 20_000), MEMBERS, st.integers(0, 1_000))
def test_a_split_gives_no_more_than_wanted_and_wastes_nothing(
    slots: int, members: list[Member], turn: int
) -> None:
    parts = split(slots, members, turn)
    wanted = [member.holding + member.awakened + member.fresh for member in members]
    assert sum(parts) == min(slots, sum(wanted))
    assert all(0 <= part <= most for part, most in zip(parts, wanted, strict=True))


@given(st.integers(1, 60), MEMBERS, st.integers(0, 1_000))
def test_awakened_demand_is_met_across_members_first(
    slots: int, members: list[Member], turn: int
) -> None:
    """Up to what is kept for new ones, each member has room for its share of awakened ones."""
    parts = split(slots, members, turn)
    awakened = sum(member.awakened for member in members)
    kept = -(-slots // OLDEST_NEW_EVERY)
    served = sum(min(part, m.awakened) for part, m in zip(parts, members, strict=True))
    assert served >= min(awakened, slots - kept)


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 10_000))
def test_new_ones_do_not_starve_beside_endless_awakened_ones(
    slots: int, others: int, start: int
) -> None:
    """A member with one new instance among members that are full of awakened ones."""
    members = [Member(slots, 1_000, 0, 0) for _ in range(others)] + [Member(0, 0, 1, 5)]
    won = [split(slots, members, start + turn)[-1] for turn in range(OLDEST_NEW_EVERY)]
    assert sum(won) >= 1


@given(st.integers(1, 12), st.integers(1, 12))
def test_nobody_starves_when_there_are_fewer_slots_than_claims(slots: int, n: int) -> None:
    """Ranks that go round, as the ledger uses them, give each claim its turn."""
    won = [0] * n
    for turn in range(n):
        shares = divide(slots, [Claim(5, 1, ((place - turn) % n,)) for place in range(n)])
        won = [before + share for before, share in zip(won, shares, strict=True)]
    assert min(won) >= 1
    assert max(won) - min(won) <= 1 or slots > n


def test_one_in_eight_is_kept_for_new_ones() -> None:
    members = [Member(0, 500, 0, 0), Member(0, 0, 500, 7)]
    assert split(80, members, 0) == [70, 10]


def test_slots_in_use_give_way_to_awakened_demand_elsewhere() -> None:
    parts = split(20, [Member(10, 0, 100, 1), Member(10, 5, 100, 1)], 0)
    assert parts == [8, 12]
