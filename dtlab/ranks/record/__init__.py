"""Recording of what ranks do: operations, bytes on the wire, memory."""
