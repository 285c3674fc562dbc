"""What of the load test decides without doing: arrivals, objectives, shares, samples, options."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loadtest import made
from tests.naming import shown
from toque.loadtest.arrivals import EVEN, POISSON, arrivals, parts_of, ramp
from toque.loadtest.histograms import Latencies, percentile
from toque.loadtest.load import BATCH, Load, Stream, group_of, split
from toque.loadtest.objectives import measured, parse_objective, verdicts
from toque.loadtest.options import MIX, SCENARIOS, parse_mix, resolved
from toque.loadtest.recorder import Recorder, Tick, summed
from toque.loadtest.result import (
    SCHEMA,
    Counts,
    RampStep,
    Result,
    decode_result,
    encode_result,
    read_result,
    write_result,
)
from toque.loadtest.samples import SEEN, SENT, Samples
from toque.loadtest.shares import Use, sample_error, share_error
from toque.runtime import limits
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import CallerError, InvalidArgument

EXAMPLE = Path(__file__).with_name("example.json")


# --- arrivals ---


def test_even_arrivals_are_at_equal_distances() -> None:
    found = list(arrivals(EVEN, 4, 1.0, SeededEntropy(1)))
    assert found == [0.0, 0.25, 0.5, 0.75]


@given(st.floats(0.5, 500), st.floats(0.1, 20))
@settings(max_examples=50, deadline=None)
def test_even_arrivals_are_as_many_as_the_rate_says(rate: float, seconds: float) -> None:
    found = list(arrivals(EVEN, rate, seconds, SeededEntropy(1)))
    assert abs(len(found) - rate * seconds) <= 1
    assert all(a < b < seconds for a, b in itertools.pairwise(found))


def test_poisson_arrivals_are_random_and_the_same_again() -> None:
    first = list(arrivals(POISSON, 100, 50, SeededEntropy("a")))
    assert first == list(arrivals(POISSON, 100, 50, SeededEntropy("a")))
    assert first != list(arrivals(POISSON, 100, 50, SeededEntropy("b")))
    gaps = [b - a for a, b in itertools.pairwise(first)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert abs(len(first) - 5_000) < 4 * math.sqrt(5_000)
    assert 0.9 < deviation / mean < 1.1  # as of an exponential; even ones have none


def test_a_ramp_grows_up_to_its_last_rate() -> None:
    assert list(ramp(10, 2, 50)) == [10, 20, 40, 50]
    assert list(ramp(10, 2, 10)) == [10]


@given(st.integers(0, 1_000), st.integers(1, 50))
def test_parts_are_the_whole(total: int, parts: int) -> None:
    found = parts_of(total, parts)
    assert sum(found) == total
    assert max(found) - min(found) <= 1


# --- loads ---


def a_load(**more: Any) -> Load:
    usual = {"group": "create", "workflow": "W", "seconds": 5.0, "in_flight": 10, "rate": 90.0}
    return Load(prefix="lt1-0", seed="1", streams=[Stream(**{**usual, **more})])


def test_even_parts_of_a_load_are_due_when_it_was() -> None:
    def due(load: Load) -> list[float]:
        one = load.streams[0]
        assert one.rate is not None
        return list(arrivals(EVEN, one.rate, one.seconds, SeededEntropy(1), one.begin))

    whole = a_load(rate=7.0, seconds=3.0)
    parts = sorted(at for part in split(whole, 4) for at in due(part))
    assert parts == pytest.approx(due(whole))


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99
    assert percentile([5.0], 0.01) == percentile([5.0], 1.0) == 5


def test_parts_of_a_load_are_it() -> None:
    parts = split(a_load(count=11), 3)
    streams = [part.streams[0] for part in parts]
    assert sum(stream.rate or 0 for stream in streams) == pytest.approx(90)
    assert sum(stream.count or 0 for stream in streams) == 11
    assert sum(stream.in_flight for stream in streams) == 10
    assert len({part.seed for part in parts}) == len({part.part for part in parts}) == 3
    again = msgspec.json.decode(msgspec.json.encode(parts[1]), type=Load)
    assert again == parts[1]


def test_ids_tell_their_group_and_differ_between_parts() -> None:
    parts = split(a_load(count=7, weights={BATCH: 1.0}), 2)
    ids = [one for part in parts for one in part.ids()]
    assert len(set(ids)) == 7
    assert {group_of(one, "lt1-0") for one in ids} == {"create"}
    assert group_of(a_load().id_of("pause-resume", 12), "lt1-0") == "pause-resume"


# --- objectives ---


def test_objectives_are_held_against_a_result() -> None:
    result = made.example()
    told = {
        "p99_start_ms=100": True,
        "p50_create_ms=1": False,
        "max_recovery_ms=2000": True,
        "error_rate=0.01": True,
        "refusal_rate=0.001": False,
        "completed_per_s=50": True,
        "completed_per_s=51": False,
        "gatekeeper_calls_per_s=2": True,
        "gatekeeper_calls_per_s=1": False,
        "p99_wake_ms=1e9": False,
        "quiet.p99_start_ms=1e9": False,
        "share_error=1": False,
    }
    found = verdicts([parse_objective(text) for text in told], result)
    assert {text: each.met for text, each in zip(told, found, strict=True)} == told
    assert found[0].objective == "p99_start_ms<=100"
    assert found[5].objective == "completed_per_s>=50"
    assert found[9].measured is None


def test_what_has_not_got_so_far_misses_its_objective_whatever_the_rest_took() -> None:
    asked = [parse_objective(f"p50_{name}_ms=1e9") for name in ("create", "start", "end")]
    asked.append(parse_objective("error_rate=0.002"))
    result = made.example()
    assert [each.met for each in verdicts(asked, result)] == [True] * 4
    result.counts.unfinished = 1
    assert [each.met for each in verdicts(asked, result)] == [True, True, False, False]
    result.counts.unstarted = 1
    assert [each.met for each in verdicts(asked, result)] == [True, False, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "p99_start_ms", "p98_start_ms=1", "p99=1", "start=1", "p99_start=1", "error_rate=x",
        "error_rate=-1", "error_rate=nan", "error_rate=inf", "p99_start_ms=", "=5", "",
        "completed_per_s=1,2", "A.p99_start_ms=1",
    ],
    ids=shown,
)  # fmt: skip
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--slo p99_start_ms=100"):
        parse_objective(text)


def test_a_ramp_is_judged_by_the_last_rate_that_held() -> None:
    result = made.example()
    asked = [parse_objective(text) for text in ("p99_start_ms=100", "held_rate=60")]
    steps = [
        RampStep(rate, met, [asked[0].verdict(90.0 if met else 110.0)])
        for rate, met in ((50.0, True), (75.0, False))
    ]
    result.ramp, result.held_rate = steps, 50.0
    found = verdicts(asked, result)
    assert [(each.measured, each.met) for each in found] == [(90, True), (50, False)]
    result.ramp, result.held_rate = steps[1:], None
    assert [(each.measured, each.met) for each in verdicts(asked, result)] == [
        (110, False), (None, False),
    ]  # fmt: skip


def test_nothing_offered_has_no_rate_of_errors() -> None:
    result = made.example()
    result.counts.offered = 0
    assert measured("error_rate", result) is None


# --- shares ---


@pytest.mark.parametrize(
    ("slots", "uses", "error"),
    [
        (10, {"a": Use(5, 90), "b": Use(5, 90)}, 0.0),
        (10, {"a": Use(10, 90), "b": Use(0, 90)}, 0.5),
        (10, {"a": Use(8, 90), "b": Use(2, 0)}, 0.0),
        (10, {"a": Use(9, 90), "b": Use(1, 1)}, 0.1),
        (10, {"a": Use(4, 0), "b": Use(2, 0)}, None),
        (0, {"a": Use(0, 9)}, None),
        (10, {}, None),
    ],
    ids=shown,
)
def test_an_unfair_division_has_an_error(
    slots: int, uses: dict[str, Use], error: float | None
) -> None:
    assert sample_error(slots, uses) == error


def test_samples_in_which_nobody_goes_short_do_not_count() -> None:
    assert share_error([None, 0.1, None, 0.3]) == pytest.approx(0.2)
    assert share_error([None]) is None


# --- histograms, counting ---


def test_a_histogram_keeps_three_digits_and_is_put_together_without_loss() -> None:
    one, two = Latencies(), Latencies()
    for number in range(1, 1_001):
        (one if number % 2 else two).add("create", float(number))
    two.add("wake", 7_200_000)  # longer than it holds
    one.merge(Latencies.unpacked(two.packed()))
    found = one.shown()
    create = found["create"]
    assert create.count == 1_000
    assert create.p50 == pytest.approx(500, rel=0.002)
    assert create.p99 == pytest.approx(990, rel=0.002)
    assert create.max == pytest.approx(1_000, rel=0.002)
    assert found["wake"].max == pytest.approx(3_600_000, rel=0.002)
    assert Latencies.unpacked({"create": create.hdr}).shown()["create"] == create


def test_a_percentile_of_few() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2], 0.99) == 2
    assert percentile([3, 1, 2], 0) == 1


def test_a_second_without_creates_has_no_percentiles() -> None:
    samples = Samples("acc", [])
    samples.add(1.0, Tick(), None)
    assert samples.last["create_p50_ms"] is samples.last["create_p99_ms"] is None


def test_parts_of_several_processes_are_one() -> None:
    whole, half = Recorder(SeededEntropy(1)), Recorder(SeededEntropy(2))
    for recorder in (whole, half):
        tally = recorder.group("create")
        recorder.offered(tally, 3)
        recorder.accepted(tally, 1)
        recorder.create_took(tally, 5)
        recorder.refused(tally, "rate.limited")
        recorder.failed(tally, "internal", unknown=True)
        recorder.created += 1
    raw = msgspec.json.encode(half.part())
    whole.merge(msgspec.json.decode(raw, type=type(half.part())))
    counts = whole.total().counts
    assert (counts.offered, counts.accepted, counts.refused, counts.failed) == (6, 2, 2, 2)
    assert (counts.unknown, whole.created) == (2, 2)
    assert whole.total().latencies["create"].count == 2
    assert whole.refusals == {"rate.limited": 2}


def test_the_latencies_of_a_second_are_a_bounded_fair_sample() -> None:
    recorder = Recorder(SeededEntropy(1))
    tally = recorder.group("create")
    most = limits.LOADTEST_SAMPLE_MAX
    for number in range(10 * most):
        recorder.create_took(tally, number)
    tick = recorder.take_tick()
    assert (len(tick.creates_ms), tick.creates) == (most, 10 * most)
    assert 4 * most < percentile(tick.creates_ms, 0.5) < 6 * most
    assert recorder.take_tick().creates == 0
    assert summed([tick, tick]).creates == 20 * most


# --- samples ---


def test_series_are_rates_between_pages() -> None:
    samples = Samples("default", {"LoadOneStep"})
    tick = Tick(offered=5, accepted=4, creates=2, creates_ms=[1.0, 3.0], rss_mib=50)
    samples.add(0, tick, made.page(1))
    samples.add(1, tick, None)
    samples.add(2, msgspec.structs.replace(tick, cpu_s=0.5), made.page(3))
    found = samples.series()
    assert len({len(values) for values in found.values()}) == 1
    assert {*SENT, *SEEN, "t_s"} <= set(found)
    assert found["completed"] == [None, None, 50]
    assert found["gatekeeper_calls_per_s"] == [None, None, 2]
    assert found["rows_per_commit"] == [None, None, 5]
    assert found["calls_per_frame"][2] == 1.5
    assert found["slots_used"] == [6, None, 8]
    assert found["loop_lag_p99_ms.d0"] == [None, None, 4]
    assert found["cpu_cores.d0"][2] == 0.25
    assert found["cpu_cores.loadtest"] == [None, 0, 0.5]
    assert found["create_p99_ms"] == [3, 3, 3]
    assert samples.totals() == {
        "gatekeeper_calls_per_s_max": 2.0, "gatekeeper_calls_over_bound": 0, "souschefs": 2,
    }  # fmt: skip
    assert samples.processes["d0"] == {"rss_mib_max": 90, "cpu_s": 0.5}
    assert (samples.ended, samples.live({"LoadOneStep"}), samples.count("queued")) == (100, 8, 3)


def test_a_counter_that_begins_anew_does_not_run_backwards() -> None:
    samples = Samples("default", {"LoadOneStep"})
    samples.add(0, Tick(), made.page(9))
    samples.add(1, Tick(), made.page(1))
    assert samples.series()["commits_per_s"] == [None, 80]


def test_calls_over_the_bound_are_counted() -> None:
    samples = Samples("default", set())
    for second in range(3):
        readings = [
            each._replace(value=9 * second) if each.name == "toque_lease_calls_total" else each
            for each in made.page(second)
        ]
        samples.add(second, Tick(), readings)
    assert samples.totals()["gatekeeper_calls_over_bound"] == 2


def test_without_metrics_nothing_is_made_up() -> None:
    samples = Samples("default", {"LoadOneStep"})
    samples.add(0, Tick(offered=1), None)
    assert samples.live({"LoadOneStep"}) is None
    assert not samples.has_figures
    assert samples.totals()["gatekeeper_calls_per_s_max"] is None
    assert samples.series()["slots_used"] == [None]


# --- options ---


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_has_all_it_needs(scenario: str) -> None:
    options = resolved(scenario)
    assert options.duration_s > 0
    assert options.count or options.rate


@pytest.mark.parametrize(
    ("scenario", "given", "told"),
    [
        ("storm", {}, "they are burst, steady"),
        ("burst", {"count": 0}, "--count is 0; it must be 1"),
        ("burst", {"count": -5}, "--count"),
        ("burst", {"count": 10**9}, "--count"),
        ("steady", {"rate": 0.0}, "--rate is 0; it must be"),
        ("steady", {"rate": math.nan}, "--rate"),
        ("steady", {"rate": math.inf}, "--rate"),
        ("steady", {"duration_s": 0.0}, "--duration"),
        ("steady", {"duration_s": 1e9}, "--duration"),
        ("steady", {"in_flight": 0}, "--in-flight"),
        ("steady", {"processes": 1_000}, "--processes"),
        ("steady", {"rate": 1e5, "duration_s": 8e4}, "operations; at most"),
        ("steady", {"work": "nothing"}, "it is one of one-step"),
        ("steady", {"arrivals": "odd"}, "it is one of even, poisson"),
        ("steady", {"workflow": "a b"}, "workflow name 'a b' is not valid"),
        ("steady", {"workflow": "mine", "params": "{"}, "--params is not JSON"),
        ("steady", {"workflow": "mine", "params": "\udcff"}, "--params is not JSON"),
        ("steady", {"seed": "\udcff"}, "--seed must be a text without halves"),
        ("steady", {"params": "1"}, "name it with --workflow"),
        ("steady", {"slo": ["p99=1"]}, "is not known"),
        ("steady", {"mix": "create=1"}, "--mix is of mixed"),
        ("steady", {"wait": True, "work": "event"}, "ends by itself"),
        ("mixed", {"mix": "dance=1"}, "Right: --mix create=6"),
        ("mixed", {"mix": "create=1,create=2"}, "may stand once"),
        ("mixed", {"mix": "create=0"}, "nothing to do"),
        ("ramp", {"growth": 1.0}, "--growth"),
        ("ramp", {"rate": 100.0, "rate_max": 50.0}, "a ramp goes up"),
        ("queue", {"limit": 0}, "--limit"),
        ("steady", {"in_flight": 2, "processes": 3}, "use fewer processes"),
        ("chaos", {"workflow": "mine"}, "leave --workflow out"),
        ("noisy-neighbour", {"quiet": 9}, "--quiet"),
    ],
    ids=shown,
)
def test_bad_options_are_refused_with_what_is_right(
    scenario: str, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(CallerError) as caught:
        resolved(scenario, **given)
    assert told in str(caught.value)


def test_weights_are_read() -> None:
    assert parse_mix("create=2, list=0.5,event=0") == {"create": 2, "list": 0.5}
    assert set(parse_mix(MIX)) > {"create", "terminate"}


# --- the document ---


def test_the_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = made.example()
    write_result(result, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == result


def test_the_example_is_what_the_code_makes() -> None:
    """Others read it as the schema's example. After a change: python -m tests.loadtest.example."""
    found = read_result(EXAMPLE)
    assert found.schema == SCHEMA
    assert _without_histograms(found) == _without_histograms(made.example())


def _without_histograms(result: Result) -> Any:
    """As they are compressed differently by other versions of the library that does it."""
    plain = msgspec.to_builtins(result)
    for latency in plain["latencies"].values():
        latency["hdr"] = bool(latency["hdr"])
    return plain


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "is no result"),
        (b"[]", "is no result"),
        (b"\xff\xfe", "is no result"),
        (b'{"schema":"toque.loadtest/9"}', "this version reads 'toque.loadtest/1'"),
        (b'{"schema":"toque.loadtest/1"}', "is damaged"),
    ],
    ids=shown,
)
def test_what_is_no_document_is_refused(raw: bytes, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        decode_result(raw)


def test_a_document_with_counts_or_times_below_0_is_refused() -> None:
    for name, value in (("counts", Counts(failed=-1)), ("wall_s", -1.0), ("failures", {"a": -1})):
        result = made.example()
        setattr(result, name, value)
        with pytest.raises(InvalidArgument, match="damaged"):
            decode_result(encode_result(result))


def test_a_document_with_series_of_two_lengths_is_refused() -> None:
    result = made.example()
    result.series["offered"].pop()
    with pytest.raises(InvalidArgument, match="differ in length"):
        decode_result(encode_result(result))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        read_result(tmp_path / "none.json")
    with pytest.raises(InvalidArgument, match="can't be written"):
        write_result(made.example(), tmp_path / "none" / "r.json")
