//! Drivers as distributions and NVIDIA's containers install them.

use super::*;
use std::os::unix::fs::symlink;

fn file(root: &Path, path: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "").unwrap();
}

fn link(root: &Path, path: &str, to: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(to, path).unwrap();
}

fn found(root: &Path) -> Vec<String> {
    let driver = Driver::new(root.to_owned(), PathBuf::from("/run/nvidia/driver"));
    let files = driver.files().unwrap();
    files.iter().map(|f| format!("{} <- {}", f.container.display(), f.host.display())).collect()
}

/// A driver of every capability: its libraries in `libraries`, its other files where the distribution has them.
fn driver(root: &Path, libraries: &str, vulkan: &str) {
    let real = [
        "libcuda.so",
        "libnvidia-ml.so",
        "libnvidia-ptxjitcompiler.so",
        "libnvcuvid.so",
        "libnvidia-encode.so",
        "libnvidia-opticalflow.so",
        "libGLX_nvidia.so",
        "libEGL_nvidia.so",
        "libnvidia-glcore.so",
        "libnvidia-ngx.so",
        "libnvoptix.so",
        "libnvidia-allocator.so",
        "vdpau/libvdpau_nvidia.so",
    ];
    for name in real {
        file(root, &format!("{libraries}/{name}.580.1.2"));
    }
    for name in
        ["libcuda.so", "libnvidia-ml.so", "libnvcuvid.so", "libnvidia-encode.so", "libnvidia-opticalflow.so"]
    {
        link(root, &format!("{libraries}/{name}.1"), &format!("{name}.580.1.2"));
    }
    link(root, &format!("{libraries}/libGLX_nvidia.so.0"), "libGLX_nvidia.so.580.1.2");
    link(root, &format!("{libraries}/libnvidia-allocator.so.1"), "libnvidia-allocator.so.580.1.2");
    link(root, &format!("{libraries}/gbm/nvidia-drm_gbm.so"), "../libnvidia-allocator.so.1");
    file(root, &format!("{libraries}/libnvidia-egl-gbm.so.1.1.2"));
    link(root, &format!("{libraries}/libnvidia-egl-gbm.so.1"), "libnvidia-egl-gbm.so.1.1.2");
    file(root, &format!("{libraries}/xorg/modules/drivers/nvidia_drv.so"));
    // These must not be mounted: a library with another version belongs to another driver.
    for name in
        ["libcuda.so.570.9.9", "libnvidia-ml.so.570.9.9", "libcudart.so.12", "libGLX_mesa.so.0", "libc.so.6"]
    {
        file(root, &format!("{libraries}/{name}"));
    }
    for path in [
        vulkan,
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/nvidia/nvoptix.bin",
        "etc/OpenCL/vendors/nvidia.icd",
        "lib/firmware/nvidia/580.1.2/gsp_ga10x.bin",
        "lib/firmware/nvidia/570.9.9/gsp_ga10x.bin",
        "usr/bin/nvidia-smi",
        "usr/bin/nvidia-persistenced",
        "run/nvidia-persistenced/socket",
    ] {
        file(root, path);
    }
}

#[test]
fn a_driver_of_every_capability_is_found_on_debian_and_fedora() {
    let roots = [
        ("debian", "usr/lib/x86_64-linux-gnu", "usr/share/vulkan/icd.d/nvidia_icd.json"),
        ("fedora", "usr/lib64", "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json"),
    ];
    for (name, libraries, vulkan) in roots {
        let root = tempfile::tempdir().unwrap();
        driver(root.path(), libraries, vulkan);
        insta::assert_snapshot!(name, found(root.path()).join("\n"));
    }
}

#[test]
fn only_libraries_that_loaders_find_by_name_go_into_the_cache() {
    let root = tempfile::tempdir().unwrap();
    driver(root.path(), "usr/lib64", "etc/vulkan/icd.d/nvidia_icd.json");
    let driver = Driver::new(root.path().to_owned(), PathBuf::from("/"));
    let files = driver.files().unwrap();
    let (named, rest): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.is_library());
    let has = |files: &[&DriverFile], path: &str| files.iter().any(|file| file.container == Path::new(path));
    for path in ["/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so", "/usr/lib64/libGLX_indirect.so.0"] {
        assert!(has(&named, path), "{path}");
    }
    for path in [
        "/usr/bin/nvidia-smi",
        "/usr/lib64/gbm/nvidia-drm_gbm.so",
        "/usr/lib64/vdpau/libvdpau_nvidia.so.580.1.2",
    ] {
        assert!(has(&rest, path), "{path}");
    }
}

#[test]
fn debians_alternatives_are_followed_inside_the_root() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    file(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1.2");
    link(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1", "libcuda.so.535.1.2");
    link(root, "etc/alternatives/libcuda", "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1");
    link(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/alternatives/libcuda");
    let real = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.1.2";
    let seen = found(root);
    assert_eq!(seen[0], format!("/usr/lib/x86_64-linux-gnu/libcuda.so.1 <- {real}"));
    assert_eq!(seen.len(), 4, "{seen:#?}");
}

#[test]
fn a_new_driver_is_found_without_a_restart_and_none_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let driver = Driver::new(root.path().to_owned(), PathBuf::from("/"));
    assert!(matches!(driver.files(), Err(AccessError::NoDriver { .. })));
    file(root.path(), "usr/lib64/libcuda.so.580.1");
    link(root.path(), "usr/lib64/libcuda.so.1", "libcuda.so.580.1");
    assert_eq!(driver.files().unwrap().len(), 3);
    fs::rename(root.path().join("usr/lib64"), root.path().join("usr/old")).unwrap();
    file(root.path(), "usr/lib64/libcuda.so.590.1");
    link(root.path(), "usr/lib64/libcuda.so.1", "libcuda.so.590.1");
    assert_eq!(driver.files().unwrap()[2].container, Path::new("/usr/lib64/libcuda.so.590.1"));
}
