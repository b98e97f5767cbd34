//! Pods that claim another pod's identity, and pods that come back although their manifest is gone.
