"""The root logger is the caller's."""

import logging

import pytest

from pipelines.prepare.process.logs import root_logger_kept


def test_without_handlers_our_warnings_are_shown_and_a_librarys_on_the_root_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    with root_logger_kept():
        logging.warning("apitools not found")  # would call basicConfig
        logging.getLogger("pipelines.x").warning("a line for the user")
        logging.getLogger("pipelines.x").info("a line for nobody")
    assert root.handlers == []
    assert capsys.readouterr().err == "a line for the user\n"


def test_the_callers_handlers_get_everything(caplog: pytest.LogCaptureFixture) -> None:
    before = list(logging.getLogger().handlers)
    with root_logger_kept():
        logging.warning("all of it")
    assert logging.getLogger().handlers == before
    assert caplog.messages == ["all of it"]
