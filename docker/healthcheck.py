"""Exit with 0 when the server in this container can take requests, for Docker's HEALTHCHECK."""

import os
import sys
import urllib.error
import urllib.request


def main() -> int:
    """Ask the server's own health route."""
    url = f"http://127.0.0.1:{os.environ.get('PORT', '8000')}/health"
    try:
        with urllib.request.urlopen(url, timeout=4) as answer:
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
