"""Published figures of papers: vDNN, AutoSwap and Capuchin."""

from __future__ import annotations

import csv
from pathlib import Path

# Digitised from figures 11 and 14 of vDNN (about 0.5 %): peak in MB without work space and with the
# fastest algorithms, and the speed of the latter relative to the unswapped step.
VDNN: dict[tuple[str, int], dict[str, tuple[float, float, float]]] = {
    ("AlexNet", 128): {
        "all": (270, 543, 0.776),
        "conv": (309, 582, 0.956),
        "base": (776, 1127, 1.0),
    },
    ("VGG16", 64): {
        "all": (2450, 2917, 0.843),
        "conv": (2800, 4279, 1.0),
        "base": (6146, 8598, 1.0),
    },
    ("VGG16", 128): {
        "all": (4862, 4862, 0.843),
        "conv": (5563, 6341, 1.0),
        "base": (12411, 14474, 1.0),
    },
    ("VGG16", 256): {
        "all": (9610, 14085, 0.787),
        "conv": (10193, 17198, 0.917),
        "base": (22957, 27976, 1.0),
    },
}
_VDNN_NETS = {
    "AlexNet128": ("AlexNet", 128),
    "VGG16_64": ("VGG16", 64),
    "VGG16_128": ("VGG16", 128),
    "VGG16_256": ("VGG16", 256),
}

# Table II of AutoSwap: the load and the least peak without overhead, MB that are MiB, batch 100.
AUTOSWAP = {
    "cifar_resnet18": (1452, 1152),
    "cifar_resnet34": (2824, 2124),
    "cifar_resnet50": (4418, 2906),
    "cifar_resnet101": (8367, 5658),
    "cifar_vgg11": (389, 284),
    "cifar_vgg13": (509, 360),
    "cifar_vgg16": (647, 447),
    "cifar_vgg19": (785, 561),
}

# Capuchin's largest batches: TensorFlow's own, vDNN's, Capuchin's.
CAPUCHIN = {
    "VGG16": (224, 228, 272, 350),
    "ResNet50": (224, 190, 520, 1014),
    "InceptionV3": (299, 160, 400, 716),
    "ResNet152": (224, 86, 330, 798),
}


def vdnn_figures(path: Path) -> dict[tuple[str, int], dict[str, tuple[float, float, float]]]:
    """Return the digitized figures; the constants above if the file is missing."""
    if not path.exists():
        return VDNN
    rows: dict[tuple[str, str], tuple[float, float]] = {}
    with path.open(newline="") as file:
        for row in csv.reader(file):
            if row and row[0] in _VDNN_NETS:
                rows[row[0], row[1]] = float(row[3]), float(row[5])
    return {
        net: {
            policy: (rows[name, f"{policy}_m"][0], *rows[name, f"{policy}_p"])
            for policy in ("all", "conv", "base")
        }
        for name, net in _VDNN_NETS.items()
    }
