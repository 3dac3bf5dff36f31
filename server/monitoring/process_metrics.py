"""Metrics of the server's own process, under the names that every Prometheus client library gives them."""

from __future__ import annotations

from server.metrics.metric_spec import counter, gauge

PROCESS_RESIDENT_BYTES = gauge("process_resident_memory_bytes", "Resident memory of the API process in bytes.")
PROCESS_CPU_SECONDS = counter("process_cpu_seconds", "CPU seconds that the API process used.")
PROCESS_OPEN_FDS = gauge("process_open_fds", "Open file descriptors of the API process: sockets of clients, above all.")
PROCESS_MAX_FDS = gauge("process_max_fds", "Most file descriptors that the API process may have open.")
PROCESS_START_SECONDS = gauge("process_start_time_seconds", "When the API process started, in seconds of Unix time.")

PROCESS_METRICS = (
    PROCESS_RESIDENT_BYTES,
    PROCESS_CPU_SECONDS,
    PROCESS_OPEN_FDS,
    PROCESS_MAX_FDS,
    PROCESS_START_SECONDS,
)
