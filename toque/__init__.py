"""toque: durable workflows and their control plane, for Python on Ray."""
