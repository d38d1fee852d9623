"""The Triton kernels. Only this package and its parent import Triton."""
