"""The emulated interconnect: real messages, delayed as described links would delay them."""
