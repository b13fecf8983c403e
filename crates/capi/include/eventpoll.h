/* mTCP's internal header of this name, which some programs include beside the public ones: these are what they need of it. */
#ifndef EVENTPOLL_H
#define EVENTPOLL_H

#include "mtcp_api.h"
#include "mtcp_epoll.h"

#endif
