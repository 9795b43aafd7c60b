namespace gradprobe {
namespace {

// In the library's file for `gradprobe doctor`, which looks for this text; nothing in the process reads it.
[[gnu::used]] const char g_version_in_file[] = "gradprobe plugin version " GRADPROBE_VERSION;

}  // namespace
}  // namespace gradprobe
