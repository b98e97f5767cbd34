//! Small manifests that multiply into much work, memory or output.
