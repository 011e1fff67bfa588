"""The summary of the demonstration, in a few lines."""

from __future__ import annotations

from .play import Play


def summarize(play: Play) -> list[str]:
    return ["", *_publishing(play), "", *_services(play), "", *_archive(play), "", verdict(play)]


def _publishing(play: Play) -> list[str]:
    shop = play.shop
    seconds = play.published_after or play.took
    lines = [
        f"{shop.published:,} events published in {seconds:.1f} s: {shop.published / seconds:,.0f} a second, "
        "each confirmed from disk"
    ]
    if play.outage:
        lines.append(f"one nsqd was killed and away for {play.outage:.1f} s")
        lines.append(f"{shop.uncertain:,} events were published again, because nsqd had not answered")
    return lines


def _services(play: Play) -> list[str]:
    lines = [f"{'':<10}{'handled':>10}{'a second':>10}{'retried':>10}{'twice':>10}{'lost':>10}"]
    for service in play.services:
        tally = service.tally
        rate = tally.handled / play.took
        lines.append(
            f"{service.name:<10}{tally.handled:>10,}{rate:>10,.0f}{tally.retries:>10,}"
            f"{tally.duplicates:>10,}{tally.lost:>10,}"
        )
    if any(service.tally.duplicates for service in play.services):
        lines.append("twice: published again, or finished just before the kill and not synced to disk")
    return lines


def _archive(play: Play) -> list[str]:
    path = play.archive.path
    return [f"the archive has {path.stat().st_size / 1e6:.1f} MB: head -3 {path}"]


def verdict(play: Play) -> str:
    retries = sum(service.tally.retries for service in play.services)
    duplicates = sum(service.tally.duplicates for service in play.services)
    return f"{play.lost:,} lost, {duplicates:,} twice, {retries:,} retried, in {play.took:.1f} s"
