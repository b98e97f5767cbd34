//! Credentials, kubeconfigs and other files that an administrator names.
