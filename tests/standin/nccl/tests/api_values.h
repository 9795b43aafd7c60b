// The values, sizes and offsets of one nccl.h, by name: api_values.cpp is compiled once with each header.
#pragma once
#include <map>
#include <string>

using ApiValues = std::map<std::string, long long>;
ApiValues own_api_values();
ApiValues installed_api_values();
