"""Where gradients come from: `torch` takes any network and device."""
