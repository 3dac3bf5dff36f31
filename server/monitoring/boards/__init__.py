"""The dashboards, one a file, from the widest question to the narrowest."""

from __future__ import annotations

from server.monitoring.boards.kv_memory import KV_MEMORY
from server.monitoring.boards.latency import LATENCY
from server.monitoring.boards.overview import OVERVIEW
from server.monitoring.boards.scheduling import SCHEDULING

BOARDS = (OVERVIEW, KV_MEMORY, SCHEDULING, LATENCY)
