"""How log records become lines: text for people, or one JSON object in each for programs."""

import json
import logging
import time
import traceback

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object in a line: time, level, logger, message, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line["message"] = "request"
            line.update({name: value for name, value in fields.items() if value is not None})
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


def make_formatter(log_format: str) -> logging.Formatter:
    """Return the formatter of a log format, "text" or "json"."""
    return JsonFormatter() if log_format == "json" else logging.Formatter(TEXT)
