"""The emulated interconnect: delays real messages as the links of a described cluster would."""
