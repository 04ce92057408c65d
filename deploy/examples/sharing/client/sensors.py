"""What the GPU and its machine say of themselves, once a second: NVML through ctypes, and Linux's /proc/stat."""

import ctypes


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


# Name in the output: NVML's function, what it fills, the attribute of that, and what one unit is.
READINGS = {
    "power_w": ("nvmlDeviceGetPowerUsage", ctypes.c_uint, "value", 1e-3),
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong, "value", 1e-3),
    "gpu_percent": ("nvmlDeviceGetUtilizationRates", Utilization, "gpu", 1),
    "memory_mib": ("nvmlDeviceGetMemoryInfo", Memory, "used", 2.0**-20),
}
TEMPERATURE_OF_GPU = 0


class Sensors:
    """Reads one GPU, and the machine. What cannot be read is left out."""

    def __init__(self, uuid=None):
        self.nvml = self.device = self.driver = None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        device = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() != 0:
            return
        version = ctypes.create_string_buffer(80)
        if self.nvml.nvmlSystemGetDriverVersion(version, len(version)) == 0:
            self.driver = version.value.decode()
        found = 1
        if uuid:
            found = self.nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(device))
        # A slice's UUID is not its GPU's: the container then has one GPU only.
        if found == 0 or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0:
            self.device = device

    def read(self):
        return {**self.gpu(), **machine()}

    def gpu(self):
        if self.device is None:
            return {}
        values = {}
        for name, (function, kind, attribute, unit) in READINGS.items():
            value = kind()
            if getattr(self.nvml, function)(self.device, ctypes.byref(value)) == 0:
                values[name] = round(getattr(value, attribute) * unit, 3)
        value = ctypes.c_uint()
        if self.nvml.nvmlDeviceGetTemperature(self.device, TEMPERATURE_OF_GPU, ctypes.byref(value)) == 0:
            values["temperature_c"] = value.value
        return values


def machine():
    """Since boot: seconds that processors were busy and idle in hundredths, and context switches."""
    values = {}
    with open("/proc/stat", encoding="ascii") as lines:
        for line in lines:
            name, *fields = line.split()
            if name == "cpu":
                times = [int(field) for field in fields[:8]]
                idle = times[3] + times[4]
                values.update(cpu_busy=sum(times) - idle, cpu_idle=idle)
            elif name == "ctxt":
                values["context_switches"] = int(fields[0])
    return values
