"""Put runs side by side: figures, dials that differ, and their curves in one picture."""

from __future__ import annotations
