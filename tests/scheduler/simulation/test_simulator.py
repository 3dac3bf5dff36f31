"""Small traces through the real scheduler, with results that were added up by hand."""

from __future__ import annotations

import pytest

from scheduler.simulation.forecast_error import ErrorSummary
from scheduler.simulation.histogram import Percentiles
from scheduler.simulation.simulator import Simulator
from scheduler.simulation.trace import TraceRequest
from scheduler.simulation.workload import Workload


def request(arrival: float, prompt: int, output: int, **fields: object) -> TraceRequest:
    return TraceRequest(**{"max_tokens": output, **fields}, arrival=arrival, prompt_tokens=prompt, output_tokens=output)


def test_one_request_takes_its_steps_and_its_pages(simulate_trace) -> None:
    # steps: 4 tokens in 2 pages for 3 s, then 1 token each, in 3 pages, for 1.5 s
    report = simulate_trace([request(10.0, 4, 3)], per_token=0.5)

    assert (report.submitted, report.finished, report.steps) == (1, 1, 3)
    assert (report.seconds, report.busy_seconds) == (6.0, 6.0)
    assert (report.generated_tokens, report.computed_tokens) == (3, 6)
    assert report.generated_per_second == 0.5
    assert report.ttft == Percentiles(3.0, 3.0, 3.0, 3.0)
    assert report.itl == Percentiles(1.5, 1.5, 1.5, 1.5)
    assert report.queue_wait == Percentiles(0.0, 0.0, 0.0, 0.0)
    assert report.peak_held_pages == 3
    assert report.mean_held_pages == (2 * 3 + 3 * 1.5 + 3 * 1.5) / 6
    # after the steps 4, 6 and 0 slots are held, for 4, 5 and 0 tokens
    assert report.internal_waste == 0.1


def test_an_answer_that_is_shorter_than_allowed_ends_with_a_stop_token(simulate_trace) -> None:
    for output in (1, 2, 5):
        report = simulate_trace([request(0.0, 3, output, max_tokens=50)])
        assert (report.finished, report.generated_tokens) == (1, output)


def test_who_comes_while_a_step_runs_waits_for_its_end(simulate_trace) -> None:
    # steps end at 1, 2, 3, 4; the second request starts at 2, when the first has ended
    report = simulate_trace([request(0.0, 1, 2), request(0.25, 1, 2)], max_num_seqs=1)

    assert report.queue_wait == Percentiles(0.0, 1.75, 1.75, 1.75)
    assert report.longest_wait == 1.75
    assert report.ttft == Percentiles(1.0, 2.75, 2.75, 2.75)
    assert (report.max_queue, report.mean_queue) == (1, 1.0 / 4.0)


def test_time_in_which_nothing_runs_is_jumped_over(simulate_trace) -> None:
    report = simulate_trace([request(5.0, 1, 1), request(1000.0, 1, 1)])

    assert (report.steps, report.seconds, report.busy_seconds) == (2, 996.0, 2.0)


def test_a_preempted_request_computes_its_tokens_again(simulate_trace) -> None:
    # both hold 2 of 4 pages when the first wants a third for its fifth token: the second loses 4 computed tokens, and
    # the gap before its next token is that of the step without it and of the first's last
    trace = [request(0.0, 2, 5), request(0.0, 2, 5)]
    report = simulate_trace(trace, num_pages=4, prefix_caching=False)

    assert report.preemptions == {"recompute/decode": 1}
    assert report.preemption_share == 0.5
    assert report.recomputed_tokens == 4
    assert report.computed_tokens == 2 * 6 + 4
    assert report.finished == 2
    assert report.peak_held_pages == 4


def test_swapping_to_host_pages_is_counted_as_such(simulate_trace) -> None:
    trace = [request(0.0, 2, 5), request(0.0, 2, 5)]
    report = simulate_trace(trace, num_pages=4, prefix_caching=False, num_host_pages=8)

    assert report.preemptions == {"swap/decode": 1}
    assert report.recomputed_tokens == 0


def test_shared_prefixes_are_found_in_the_cache(simulate_trace) -> None:
    trace = [request(10.0 * i, 10, 1, prefix_id="p", prefix_tokens=6) for i in range(3)]
    report = simulate_trace(trace)

    assert report.prefix_hit_share == (6 + 6) / 30
    assert report.computed_tokens == 30 - 12


def test_small_requests_that_pass_one_that_wants_pages_are_counted(simulate_trace) -> None:
    # 8 pages: the first takes 5; the second wants 6 and waits; the third takes 1
    trace = [request(0.0, 8, 3), request(0.0, 12, 1), request(0.0, 2, 1)]

    assert simulate_trace(trace, num_pages=8).overtakes == 1
    assert simulate_trace(trace, num_pages=8, max_overtakes=0).overtakes == 0


# ---- refusals


def test_every_request_is_finished_or_refused_once(simulate_trace) -> None:
    trace = list(Workload(num_requests=300, rate=4.0, mean_prompt=20, mean_output=8, tenants={"a": 2, "b": 1}))
    limits = {"max_num_seqs": 3, "max_queued_requests": 10, "queue_timeout": 12.0, "timeout": 20.0}
    report = simulate_trace(trace, num_pages=40, **limits)

    assert report.submitted == 300
    assert set(report.refusals) == {"never_fits", "queue_full", "queue_timeout", "timeout"}
    assert report.submitted == report.finished + sum(report.refusals.values())
    assert report.max_queue <= 10 + 2  # with those of 3 running that were preempted
    assert report.longest_wait <= 12.0 + 1.0


def test_a_request_that_fits_no_pool_is_refused_at_the_door(simulate_trace) -> None:
    report = simulate_trace([request(0.0, 9, 1), request(0.0, 8, 1)], num_pages=4)

    assert report.refusals == {"never_fits": 1}
    assert report.finished == 1


def test_a_full_queue_refuses_the_newest_and_tells_it_when_a_place_comes_free(simulate_trace) -> None:
    # the first draws at 1, 2 .. 10; at 1 the second takes the only place in the queue, and starts at 10
    trace = [request(0.0, 1, 10), request(0.25, 1, 1), request(0.5, 1, 1)]
    report = simulate_trace(trace, max_num_seqs=1, max_queued_requests=1)

    assert report.refusals == {"queue_full": 1}
    assert report.retry_after == ErrorSummary(1, 0.0, 1.0, 1.0)
    assert report.longest_wait == 9.75


def test_a_request_that_waits_too_long_is_refused_and_its_wait_counts(simulate_trace) -> None:
    report = simulate_trace([request(0.0, 1, 10), request(0.25, 1, 1)], max_num_seqs=1, queue_timeout=4.0)

    assert report.refusals == {"queue_timeout": 1}
    assert report.longest_wait == 4.75
    assert report.queue_wait.max == 0.0
    assert report.ttft_p99_of_all == float("inf")


# ---- forecasts and fairness


def test_the_forecast_of_a_start_is_compared_with_the_start(simulate_trace) -> None:
    # asked at 1, the second is told 9 s, since the first has 9 tokens to draw; and it takes that long, or 4
    waiting = [request(0.25, 1, 1)]
    kept = simulate_trace([request(0.0, 1, 10), *waiting], max_num_seqs=1)
    ended_early = simulate_trace([request(0.0, 1, 5, max_tokens=10), *waiting], max_num_seqs=1)

    assert kept.start_forecast == ErrorSummary(1, 0.0, 1.0, 1.0)
    assert ended_early.start_forecast == ErrorSummary(1, 5.0, 9 / 4, 0.0)


def test_only_every_kth_arrival_is_asked_about(simulate_trace) -> None:
    trace = [request(0.0, 1, 10), *[request(0.25, 1, 1) for _ in range(8)]]

    assert simulate_trace(trace, max_num_seqs=1, forecast_every=3).start_forecast.count == 3


def test_a_fair_policy_serves_tenants_more_evenly_than_the_order_of_arrival(simulate_trace) -> None:
    # both tenants always have something waiting, and one asks for four times as much
    trace = [request(0.0, 4, 8, tenant="busy" if i % 5 else "quiet") for i in range(2000)]
    settings = {"max_num_seqs": 4, "max_queued_requests": 2000, "forecast_every": 10**9}
    fcfs = simulate_trace(trace, **settings)
    fair = simulate_trace(trace, **settings, policy="fair")

    assert fcfs.fairness == fair.fairness == pytest.approx((4 + 1) ** 2 / (2 * (4**2 + 1)))
    assert fcfs.fairness_while_waiting == pytest.approx(fcfs.fairness, abs=0.01)
    assert fair.fairness_while_waiting == pytest.approx(1.0, abs=0.001)


def test_service_is_what_was_computed_and_twice_what_was_drawn(simulate_trace) -> None:
    # 4 + 2 * 6 = 8 + 2 * 4; the 6 tokens that the second prompt of "b" finds in the cache are no service
    trace = [request(0.0, 4, 6, tenant="a"), request(0.0, 8, 4, tenant="b", prefix_id="p", prefix_tokens=8)]
    again = request(50.0, 8, 1, tenant="b", prefix_id="p", prefix_tokens=8)

    assert simulate_trace(trace).fairness == pytest.approx(1.0)
    assert simulate_trace([*trace, again]).fairness == pytest.approx((16 + 20) ** 2 / (2 * (16**2 + 20**2)))


def test_a_priority_policy_starts_the_important_ones_first(simulate_trace) -> None:
    trace = [request(0.0, 1, 3), request(0.0, 1, 5, priority=1), request(0.0, 1, 3, priority=0)]

    assert simulate_trace(trace, max_num_seqs=1, policy="priority").longest_wait == 3 + 3
    assert simulate_trace(trace, max_num_seqs=1).longest_wait == 3 + 5


# ---- the run itself


def test_the_same_trace_gives_the_same_report(simulate_trace) -> None:
    workload = Workload(num_requests=200, rate=1.0, mean_prompt=20, mean_output=8, prefix_share=0.5, num_prefixes=3)

    assert simulate_trace(workload, num_pages=60) == simulate_trace(workload, num_pages=60)


def test_nothing_is_left_at_the_end(settings) -> None:
    workload = Workload(num_requests=200, rate=1.0, mean_prompt=20, mean_output=8, prefix_share=0.5)
    simulator = Simulator(settings(timeout=15.0), 60, workload)
    simulator.run()

    assert simulator.scheduler.blocks.audit() == []
    assert simulator.scheduler.blocks.usage().held == 0
    assert simulator._open == simulator._draws == {}


def test_progress_is_told_while_it_runs(settings) -> None:
    told: list[tuple[float, int]] = []
    trace = [request(0.0, 1, 300), request(0.0, 1, 1)]
    Simulator(settings(), 200, trace, lambda seconds, ended: told.append((seconds, ended))).run()

    assert told == [(256.0, 1)]


def test_an_empty_trace_is_an_empty_report(simulate_trace) -> None:
    report = simulate_trace([])

    assert (report.submitted, report.steps, report.seconds) == (0, 0, 0.0)
