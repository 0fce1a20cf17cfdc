"""`FlowBuilder`: from method calls to a frozen spec."""
