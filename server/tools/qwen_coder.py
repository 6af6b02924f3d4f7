"""Qwen3-Coder: functions and parameters as tags.

<tool_call>
<function=f>
<parameter=a>
1
</parameter>
</function>
</tool_call>
"""

import re

from server.tools.tagged import TaggedFormat

QWEN_CODER = TaggedFormat(
    "qwen_coder",
    call=re.compile(r"\s*<function=([\w.\-]+)>(.*?)</function>\s*(?:</tool_call>)?", re.DOTALL),
    key=re.compile(r"\s*<parameter=([^>\n]+)>\n?"),
    value=re.compile(r"(.*?)\n?</parameter>\s*", re.DOTALL),
)
