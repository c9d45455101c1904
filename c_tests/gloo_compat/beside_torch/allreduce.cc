// An allreduce by the headers of Gloo's API, whose names are also those in libtorch.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

extern "C" bool allreduce_by_headers(int rank, int size, const char* folder) {
  try {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    std::vector<float> data(1000, static_cast<float>(rank + 1));
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), data.size());
    void (*sum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
    options.setReduceFunction(sum);
    gloo::allreduce(options);
    const auto wanted = static_cast<float>(size * (size + 1) / 2);
    for (const float value : data) {
      if (value != wanted) {
        std::fprintf(stderr, "the headers' allreduce: %g instead of %g\n", value, wanted);
        return false;
      }
    }
    return true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the headers' allreduce: %s\n", error.what());
    return false;
  }
}
