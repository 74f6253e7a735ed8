"""Read picture data sets in their publishers' layouts: Tiny-ImageNet, CINIC-10, DomainNet, PACS, and digits of
several domains."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from pfedsim.data.cache import Tell, cached, quiet
from pfedsim.data.catalogue import DOMAINS
from pfedsim.data.dataset import DataSet, moments
from pfedsim.data.readers import npz
from pfedsim.data.readers.folders import Listing, as_data, check_case, listing, subfolders
from pfedsim.data.readers.pictures import listed, mapped
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CINIC = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))
TINY = (
    tuple(v / 255 for v in (122.5119, 114.2915, 101.388)),
    tuple(v / 255 for v in (58.7048, 57.7551, 57.6717)),
)
SUBSET_CLASSES, SUBSET_SHARE, SUBSET_SEED, SUBSET_SIZE = 20, 0.3, 42, 64  # the paper's subset of DomainNet


def tiny_imagenet(folder: Path, size: int | None = None, tell: Tell = quiet) -> DataSet:
    """Read train and val, with classes in the order of wnids.txt. The test part has no labels and is not used."""
    wnids = [line.strip() for line in _lines(folder / "wnids.txt") if line.strip()]
    words = dict(line.rstrip("\n").split("\t", 1) for line in _lines(folder / "words.txt") if "\t" in line)
    named = [words.get(wnid, wnid).partition(",")[0].strip() for wnid in wnids]
    classes = tuple(
        word if named.count(word) == 1 else f"{word} ({wnid})"
        for word, wnid in zip(named, wnids, strict=True)
    )
    place = {wnid: k for k, wnid in enumerate(wnids)}
    files, y = [], []
    for wnid in wnids:
        here = folder / "train" / wnid / "images"
        found = listed(here) if here.is_dir() else []
        if not found:
            raise Error(f"class folder {here} has no images: Tiny-ImageNet is incomplete")
        files += found
        y += [place[wnid]] * len(found)
    for number, line in enumerate(_lines(folder / "val" / "val_annotations.txt"), 1):
        name, _, wnid = line.partition("\t")
        wnid = wnid.partition("\t")[0].strip()
        if wnid not in place:
            raise Error(
                f"{folder / 'val' / 'val_annotations.txt'}, line {number}: {wnid!r} is not in wnids.txt"
            )
        files.append(folder / "val" / "images" / name)
        y.append(place[wnid])
    pictures = Listing(files, y, classes)
    return as_data(
        "tiny-imagenet",
        pictures,
        size=size,
        constants=TINY,
        defaults=Defaults(model="mobilenetv2"),
        tell=tell,
    )


def cinic10(folder: Path, size: int | None = None, tell: Tell = quiet) -> DataSet:
    """Read and pool the folders test, train and valid, in this order."""
    parts = [listing(folder / part, "class") for part in ("test", "train", "valid")]
    for part, found in zip(("test", "train", "valid"), parts, strict=True):
        if found.classes != parts[0].classes:
            raise Error(
                f"{folder / part} has classes {', '.join(found.classes)}; test has {', '.join(parts[0].classes)}"
            )
    pictures = Listing(
        [f for p in parts for f in p.files], [k for p in parts for k in p.y], parts[0].classes
    )
    return as_data("cinic10", pictures, size=size, constants=CINIC, defaults=Defaults(), tell=tell)


def domainnet(folder: Path, size: int | None = None, tell: Tell = quiet) -> DataSet:
    """Read the paper's subset: 20 classes drawn from the sorted list, 30% of each class in each domain, 64 x 64.
    The pictures are those in the publisher's lists (DOMAIN_train.txt, DOMAIN_test.txt), or all if there are no
    lists."""
    by_place = _by_list(folder) or _by_folder(folder)
    names = sorted({label for _, label in by_place})
    check_case(names, folder)
    if len(names) < SUBSET_CLASSES:
        raise Error(
            f"{folder} has {len(names)} classes; DomainNet has 345, of which {SUBSET_CLASSES} are drawn"
        )
    absent = [domain for domain in DOMAINS if domain not in {d for d, _ in by_place}]
    if absent:
        raise Error(f"{folder} has no {', '.join(absent)}: DomainNet has six domains")
    stream = random.Random(SUBSET_SEED)
    classes = sorted(stream.sample(names, SUBSET_CLASSES))
    files: list[Path] = []
    y: list[int] = []
    domain: list[str] = []
    for where in sorted({d for d, _ in by_place}):
        for k, label in enumerate(classes):
            mine = sorted(by_place.get((where, label), []))
            part = sorted(stream.sample(mine, int(SUBSET_SHARE * len(mine))))
            files += part
            y += [k] * len(part)
            domain += [where] * len(part)
    defaults = Defaults(clients=120, partition="domain", minimum=2, model="mobilenetv2")
    pictures = Listing(files, y, tuple(classes), domain=domain)
    return as_data(
        "domainnet", pictures, size=size or SUBSET_SIZE, constants=IMAGENET, defaults=defaults, tell=tell
    )


def pacs(folder: Path, size: int | None = None, tell: Tell = quiet) -> DataSet:
    """Four domains of seven classes."""
    defaults = Defaults(clients=20, partition="domain", minimum=10, join=0.5, model="mobilenetv2")
    return as_data(
        "pacs", listing(folder, "domain/class"), size=size, constants=IMAGENET, defaults=defaults, tell=tell
    )


def digit_domains(folder: Path, size: int | None = None, tell: Tell = quiet) -> DataSet:
    """Read every .npz in the folder as a domain of the ten digits (x: pixels, y), converted to 3 x 32 x 32."""
    from PIL import Image

    side = size or 32
    files = sorted(folder.glob("*.npz"))

    def make(into: Path) -> DataSet:
        parts, total = [npz.read(path) for path in files], 0
        for path, part in zip(files, parts, strict=True):
            pixels = part.x.dtype == np.uint8 and len(part.shape) == 3
            if not pixels or part.classes != tuple("0123456789")[: len(part.classes)]:
                raise Error(f"{path} does not contain images of the ten digits")
            total += len(part.y)
        x = mapped(into / "x.npy", (total, 3, side, side))
        done = 0
        for part in parts:
            for sample in part.x:
                if done % 1000 == 0:
                    tell("reading digit-domains", done, total)
                grey = len(sample) == 1
                image = Image.fromarray(
                    sample[0] if grey else np.ascontiguousarray(sample.transpose(1, 2, 0))
                )
                image = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
                x[done] = np.asarray(image).transpose(2, 0, 1)
                done += 1
        tell("reading digit-domains", total, total)
        domain = np.repeat([path.stem for path in files], [len(part.y) for part in parts])
        y = np.concatenate([part.y for part in parts])
        return DataSet("digit-domains", x, y, tuple("0123456789"), *moments(x), domain=domain)

    defaults = Defaults(clients=5 * len(files), partition="domain", minimum=10, join=None)
    return cached("digit-domains", files, {"size": side}, make, defaults)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"{path} cannot be read: {error}") from error


def _by_list(folder: Path) -> dict[tuple[str, str], list[Path]]:
    """Pictures by domain and class, from lines like `clipart/zebra/clipart_344_000001.jpg 344`."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted([*folder.glob("*_train.txt"), *folder.glob("*_test.txt")]):
        for number, line in enumerate(_lines(path), 1):
            parts = line.rpartition(" ")[0].strip().split("/")
            if line.strip() and (len(parts) != 3 or ".." in parts):
                raise Error(
                    f"{path}, line {number}: {line!r} should have the form domain/class/file.jpg NUMBER"
                )
            if line.strip():
                found.setdefault((parts[0], parts[1]), []).append(folder.joinpath(*parts))
    return found


def _by_folder(folder: Path) -> dict[tuple[str, str], list[Path]]:
    return {
        (domain, label): listed(folder / domain / label)
        for domain in subfolders(folder)
        for label in subfolders(folder / domain)
    }
