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
    call=re.compile(r"\s*([\w.\-]+)\s*(.*)</tool_call>", re.DOTALL),
    argument=re.compile(
        r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL
    ),
)
