"""The mixed-integer program of `tvdnn_ilp`."""
