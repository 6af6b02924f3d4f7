"""Writes a GGUF file's model again with its matrices in other formats, for servers that read those.

The values are those of the source, which are rounded again only where a format is narrower.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

FORMATS = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
# What a writer makes by itself.
OWN_FIELDS = ("general.architecture", "general.file_type")


def write_format(source: Path, target: Path, name: str) -> None:
    """Write the model of `source` to `target` with its matrices in a format of `FORMATS`."""
    reader = GGUFReader(source)
    kind, file_type = FORMATS[name]
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in OWN_FIELDS:
            is_list = field.types[0] == GGUFValueType.ARRAY
            of = field.types[-1] if is_list else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
