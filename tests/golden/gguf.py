"""Just enough of GGUF (v3, little endian) to break a file at a chosen field: where each of them lies."""
import struct

WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Layout:
    """values: key -> (type, offset of the value); tensors: name -> {n_dims, dims, type, offset: offsets of the fields};
    header_end: where the tensor infos end."""

    def __init__(self, data):
        self.data, self.at = data, 24
        tensors, values = struct.unpack_from("<QQ", data, 8)
        self.values, self.tensors = {}, {}
        for _ in range(values):
            key = self._string()
            kind = self._int("<I", 4)
            self.values[key] = (kind, self.at)
            self._skip(kind)
        for _ in range(tensors):
            name = self._string()
            fields = {"n_dims": self.at}
            n = self._int("<I", 4)
            fields["dims"] = self.at
            self.at += 8 * n
            fields["type"] = self.at
            fields["offset"] = self.at + 4
            self.at += 12
            self.tensors[name] = fields
        self.header_end = self.at

    def _int(self, code, width):
        (v,) = struct.unpack_from(code, self.data, self.at)
        self.at += width
        return v

    def _string(self):
        n = self._int("<Q", 8)
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def _skip(self, kind):
        if kind == STRING:
            self._string()
        elif kind == ARRAY:
            inner, n = self._int("<I", 4), self._int("<Q", 8)
            for _ in range(n):
                self._skip(inner)
        else:
            self.at += WIDTHS[kind]


def patched(data, offset, code, value):
    """A copy of data with one field overwritten."""
    out = bytearray(data)
    struct.pack_into(code, out, offset, value)
    return bytes(out)


def with_string(data, layout, key, value):
    """A copy of data with another string of the same length under key."""
    kind, offset = layout.values[key]
    (n,) = struct.unpack_from("<Q", data, offset)
    assert kind == STRING and len(value) == n, (key, kind, n)
    return data[:offset + 8] + value + data[offset + 8 + n:]
