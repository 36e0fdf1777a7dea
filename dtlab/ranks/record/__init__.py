"""What ranks do, recorded: operations, bytes on the wire, memory."""
