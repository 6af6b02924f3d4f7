"""GLM 4.5 and later: a name, then keys and values as tags.

<tool_call>f
<arg_key>a</arg_key>
<arg_value>1</arg_value>
</tool_call>
"""

import re

from server.tools.tagged import TaggedFormat

GLM = TaggedFormat(
    "glm",
    # The name is not given back letter by letter where the end does not come.
    call=re.compile(r"\s*([\w.\-]++)\s*+(.*)</tool_call>", re.DOTALL),
    key=re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>", re.DOTALL),
    value=re.compile(r"(.*?)</arg_value>\s*", re.DOTALL),
)
