"""Every flag arrives where it is meant to."""

from __future__ import annotations

from scheduler.config import SchedulerConfig
from scheduler.simulation.flags import parse, settings_of, target_of, workload_of
from scheduler.simulation.page_search import Target
from scheduler.simulation.settings import Settings
from scheduler.simulation.step_cost import StepCost
from scheduler.simulation.workload import Workload


def test_flags_of_the_server_become_its_settings() -> None:
    flags = (
        "--max-num-seqs 1 --max-num-batched-tokens 2 --long-prefill-token-threshold 3 --max-queued-requests 4 "
        "--max-queued-tokens 5 --watermark-tokens 6 --max-overtakes 7 --step-base 8 --step-per-token 9 "
        "--step-per-context-token 10 --step-per-moved-page 11 --windows 12x2 --block-size 13 "
        "--no-enable-prefix-caching --host-pages 14 --policy priority --priority-aging 15 --tenant-weights a=16,b=17 "
        "--queue-timeout 18 --timeout 19 --forecast-every 20"
    )

    assert settings_of(parse(["--trace", "x", "--pages", "1", *flags.split()])) == Settings(
        limits=SchedulerConfig(
            max_num_seqs=1,
            max_num_batched_tokens=2,
            long_prefill_token_threshold=3,
            max_queued_requests=4,
            max_queued_tokens=5,
            watermark_tokens=6,
            max_overtakes=7,
            seconds_per_page=11.0,
        ),
        cost=StepCost(base=8.0, per_token=9.0, per_context_token=10.0, per_moved_page=11.0),
        windows=(12, 12),
        block_size=13,
        prefix_caching=False,
        num_host_pages=14,
        policy="priority",
        priority_aging=15.0,
        tenant_weights={"a": 16.0, "b": 17.0},
        queue_timeout=18.0,
        timeout=19.0,
        forecast_every=20,
    )


def test_flags_that_are_left_out_mean_the_schedulers_defaults() -> None:
    settings = settings_of(parse(["--trace", "x", "--pages", "1"]))

    assert settings.limits == SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512)
    assert (settings.windows, settings.block_size, settings.policy) == ((None,), 16, "fcfs")


def test_flags_of_the_trace_become_a_workload() -> None:
    flags = (
        "--requests 1 --rate 2 --mean-prompt 3 --mean-output 4 --length-sigma 5 --max-tokens 6 --prefix-share 0.7 "
        "--prefixes 8 --prefix-tokens 9 --tenants a=10 --seed 11"
    )

    assert workload_of(parse(["--pages", "1", *flags.split()])) == Workload(
        num_requests=1,
        rate=2.0,
        mean_prompt=3.0,
        mean_output=4.0,
        length_sigma=5.0,
        max_tokens=6,
        prefix_share=0.7,
        num_prefixes=8,
        prefix_tokens=9,
        tenants={"a": 10.0},
        seed=11,
    )


def test_flags_of_the_search_become_a_target() -> None:
    parsed = parse(["--trace", "x", "--find-pages", "--target-ttft", "1.5", "--target-preemptions", "0.1"])

    assert target_of(parsed) == Target(ttft=1.5, preemptions=0.1)
