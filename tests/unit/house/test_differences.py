"""Each difference in docs/differences.md has tests."""

from __future__ import annotations

import re

from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "differences.md").read_text()

TESTS_OF_DIFFERENCES = {
    "E43": "test_nothing_expires_by_a_retention_that_nobody_set",
    "E132": "test_a_level_of_the_topic_s_own_says_which_reads_go_to_the_tier",
    "E133": "test_keys_go_to_the_tier_within_their_interval_however_many_follow",
    "E134": "test_a_run_deletes_so_many_segments_and_goes_on_a_minute_later",
    "E44": "test_a_queue_is_announced_by_the_scan_and_not_by_its_messages",
    "E45": "test_a_failing_queue_stops_no_other_and_goes_on_later",
    "E46": "test_defect_d21_a_failing_index_keeps_the_order_of_keys",
    "E47": "test_segments_are_cut_between_messages_and_read_as_one",
    "E48": "test_a_next_store_that_refuses_leaves_the_tier_alone",
    "E49": "test_a_scan_has_as_many_threads_as_are_configured",
    "E50": "test_room_is_what_unread_blocks_leave_of_the_fill_ratio",
    "E143": "test_a_random_reader_is_given_what_it_asked_for_and_pays_for_no_more",
    "E144": "test_force_reads_from_the_next_store_what_the_tier_does_not_have",
    "E52": "test_a_misspelt_path_stops_a_posix_tier_that_has_none",
    "E51": "test_a_reader_may_ask_for_fewer_bytes",
    "E53": "test_no_reader_is_sent_to_a_slave",
    "E62": "test_a_killed_process_loses_nothing_of_what_was_put",
    "E96": "test_the_retry_topic_of_an_unknown_group_has_a_route_and_creates_nothing",
    "E97": "test_i03_a_slow_sender_is_closed_like_an_idle_one_and_a_live_one_is_not",
    "E63": "test_the_queue_whose_key_is_the_checkpoint_s_is_refused",
}
"""Tests of differences in docs/differences.md, by the number of the difference. The names of these
tests do not contain the number."""


def test_every_defect_of_the_page_has_a_test_of_its_name() -> None:
    rows = {int(number) for number in re.findall(r"^\| D(\d+) \|", PAGE, re.MULTILINE)}
    assert rows == set(range(1, 28))
    tested: set[int] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for names in re.findall(r"def test_defects?_((?:d\d\d_)+)", path.read_text()):
            tested |= {int(number) for number in re.findall(r"d(\d\d)", names)}
    assert rows - tested == set()


def test_the_numbers_of_the_differences_are_unique() -> None:
    numbers = re.findall(r"^\| (E\d+) \|", PAGE, re.MULTILINE)
    assert len(numbers) == len(set(numbers)) > 30


def test_the_tests_of_differences_are_there() -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert set(TESTS_OF_DIFFERENCES.values()) - tests == set()
    assert set(TESTS_OF_DIFFERENCES) <= set(re.findall(r"^\| (E\d+) \|", PAGE, re.MULTILINE))
