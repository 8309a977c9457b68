"""The parts of `tvdnn_ilp`."""
